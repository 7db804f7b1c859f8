"""A stack's roles as an Ansible playbook that does the same work in the same order.

Written as a friend of Ansible would: no facts gathered, no task more than needed, one shell
command where `unless`, `do` or a probe's loop would otherwise take several round trips.  `watch` is
left out: on fresh machines every command is due anyway.
"""

from __future__ import annotations

import json
import re
import shlex
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from essaim.model.roles import Role, RoleFile, RoleStep
    from essaim.model.stacks import Machine, Stack


class Verbatim(str):
    """Text that Ansible shall not read as a template."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes playbooks."""


_Dumper.add_representer(
    Verbatim, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text), style="|")
)


def write(
    here: Path, stack: Stack, ssh: Mapping[str, list[str]], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Write playbook, inventory and settings; give the arguments and environment to play them.

    `ssh` holds, for each machine, the options with which OpenSSH reaches it.
    """
    plays = [_play(here, stack, role) for role in ordered(stack)]
    (here / "site.yml").write_text(yaml.dump(plays, Dumper=_Dumper, sort_keys=False))
    (here / "hosts.json").write_text(json.dumps(_inventory(stack, ssh), indent=1))
    (here / "ansible.cfg").write_text(_SETTINGS.format(here=here))
    settings = {
        **environ,
        "ANSIBLE_CONFIG": str(here / "ansible.cfg"),
        "ANSIBLE_HOME": str(here / "home"),
        "LC_ALL": "C.UTF-8",
    }
    return ["-f", "20", "-i", str(here / "hosts.json"), str(here / "site.yml")], settings


_SETTINGS = """\
[defaults]
forks = 20
gathering = explicit
host_key_checking = True
interpreter_python = /usr/bin/python3
retry_files_enabled = False
local_tmp = {here}/tmp

[ssh_connection]
pipelining = True
ssh_args = -o ControlMaster=auto -o ControlPersist=60s
control_path_dir = {here}/cp
"""


def ordered(stack: Stack) -> list[Role]:
    """List the stack's roles, each after those it needs and those before it on its machines."""
    before: dict[str, set[str]] = {}
    for machine in stack.machines:
        for position, name in enumerate(machine.roles):
            earlier = before.setdefault(name, set(stack.roles[name].needs.values()))
            earlier.update(machine.roles[:position])
    return [stack.roles[name] for name in TopologicalSorter(before).static_order()]


def _inventory(stack: Stack, ssh: Mapping[str, list[str]]) -> dict[str, Any]:
    hosts = {
        machine.name.machine: {
            "ansible_host": machine.address,
            "ansible_user": "root",
            "ansible_ssh_common_args": shlex.join(ssh[machine.name.machine]),
            **_facts(stack, machine),
        }
        for machine in stack.machines
    }
    carriers: dict[str, Any] = {
        _group(role): {"hosts": {m.name.machine: {} for m in stack.machines if role in m.roles}}
        for role in stack.roles
    }
    return {"all": {"hosts": hosts, "children": carriers}}


def _facts(stack: Stack, machine: Machine) -> dict[str, Any]:
    from essaim.remote.render import Facts, describe  # noqa: PLC0415 - only with a peer to play

    members = {
        key: [m for m in stack.machines if carried in m.roles]
        for name in machine.roles
        for key, carried in stack.roles[name].members.items()
    }
    facts = Facts(stack=stack.name, network=stack.network.cidr, machine=machine, members=members)
    told = describe(facts)
    return {key: told[key] for key in ("stack", "machine", "members", "network")}


def _play(here: Path, stack: Stack, role: Role) -> dict[str, Any]:
    needs = {
        key: f"{{{{ hostvars[groups['{_group(provider)}'][0]]['provided_{key}'].stdout }}}}"
        for key, provider in role.needs.items()
    }
    return {
        "name": role.name,
        "hosts": _group(role.name),
        "gather_facts": False,
        "vars": {"needs": needs, "role_vars": _plain(role.vars, stack.vars.get(role.name, {}))},
        "tasks": [
            *_packages(role.packages),
            *(_file(here, role, file) for file in role.files),
            *(_step(step) for step in role.run),
            *_ready(role),
            *_provides(role),
        ],
    }


def _packages(names: Iterable[str]) -> Iterator[dict[str, Any]]:
    words = shlex.join(names)
    if words:
        # The `apt` module needs python3-apt on the machine, and would look up far more.
        yield {"name": "packages", "shell": Verbatim(f"dpkg-query -s {words} >/dev/null")}


def _file(here: Path, role: Role, file: RoleFile) -> dict[str, Any]:
    place = {"dest": file.to, "owner": file.owner, "mode": f"{file.mode:04o}"}
    if file.group:
        place["group"] = file.group
    if file.content is not None:
        return {"name": file.to, "copy": {"content": renamed(file.content), **place}}
    if file.copy is not None:
        return {"name": file.to, "copy": {"src": str(role.path / file.copy), **place}}
    source = here / f"{role.name}.{file.template}"
    source.write_text(renamed((role.path / str(file.template)).read_text()))
    # Ansible trims the newline after a block unless told not to; Essaim does not.
    return {"name": file.to, "template": {"src": str(source), "trim_blocks": False, **place}}


def _step(step: RoleStep) -> dict[str, Any]:
    unless = f"if ( {step.unless}\n) >/dev/null 2>&1; then exit 0; fi\n" if step.unless else ""
    return {
        "name": step.name,
        "shell": Verbatim(unless + step.do),
        "environment": {key: renamed(str(value)) for key, value in step.env.items()},
    }


def _ready(role: Role) -> Iterator[dict[str, Any]]:
    if role.ready is None:
        return
    loop = f"until {role.ready.command}\ndo sleep {role.ready.every}; done"
    words = f"exec timeout {role.ready.within:.0f} sh -c {shlex.quote(loop)}"
    yield {"name": "ready", "shell": Verbatim(words)}


def _provides(role: Role) -> Iterator[dict[str, Any]]:
    for key, value in role.provides.items():
        if value.command is not None:
            task = {"shell": Verbatim(value.command), "register": f"provided_{key}"}
            yield {"name": key, "no_log": value.secret, **task}
        else:
            fact = {f"provided_{key}": {"stdout": renamed(value.value or "")}}
            yield {"name": key, "set_fact": fact}


def renamed(text: str) -> str:
    """Say `role_vars` for `vars`, a name that Ansible keeps for itself."""
    return re.sub(r"(?<![\w.])vars(?=\.|\[)", "role_vars", text)


def _group(role: str) -> str:
    return "role_" + re.sub(r"\W", "_", role)


def _plain(*parts: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: value for part in parts for key, value in part.items()}
    plain: dict[str, Any] = json.loads(json.dumps(merged, default=str))
    return plain
