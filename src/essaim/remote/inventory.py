"""What ansible-playbook is told about the machines: files in a private directory, no arguments.

No text in them is a template: Ansible evaluates templates on this computer, and what is told comes
from nodes, tenants, rosters and files of users.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from essaim.remote.keyring import alias
from essaim.remote.render import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from essaim.model.roles import Role
    from essaim.remote.keyring import Keyring
    from essaim.remote.render import Facts
    from essaim.remote.ssh import Target

# `piped` needs no sftp server on the machine.  Skipped hosts say nothing anybody acts on.
CONFIG = """\
[defaults]
forks = 20
local_tmp = {box}/tmp
retry_files_enabled = false
stdout_callback = default
callback_result_format = json
display_skipped_hosts = false
interpreter_python = auto_silent
nocows = true
nocolor = true
timeout = 30
[ssh_connection]
pipelining = true
transfer_method = piped
control_path_dir = {box}/cp
ssh_args = -F /dev/null -o ControlMaster=auto -o ControlPersist=60s
"""
_TEMPLATES = ("{{", "{%", "{#")
#: What YAML calls text that stands for nothing else.
_TEXT = "tag:yaml.org,2002:str"


def prepare(
    box: Path,
    role: Role,
    targets: Sequence[tuple[Target, Facts]],
    *,
    keyring: Keyring,
    proxy: Callable[[Target], list[str]] | None,
) -> list[str]:
    """Write configuration, inventory and variables into `box`; gives the arguments to use them."""
    common = _common([{**facts.vars, **_needs(facts)} for _, facts in targets])
    hosts = {
        target.name.machine: {
            **_described(facts, common),
            "ansible_host": target.address,
            "ansible_port": target.port,
            "ansible_user": target.user,
            "ansible_ssh_private_key_file": str(keyring.path(target.key)),
            "ansible_ssh_common_args": shlex.join(ssh_options(target, box / "known_hosts", proxy)),
            "ansible_become": bool(target.become),
        }
        for target, facts in targets
    }
    inventory, variables = box / "inventory.yaml", box / "vars.yaml"
    write_private(box / "ansible.cfg", CONFIG.format(box=box))
    write_private(
        box / "known_hosts", "".join(f"{alias(t.name)} {t.host_key}\n" for t, _ in targets)
    )
    every = {"hosts": foreign(hosts), "children": _groups(role, targets)}
    write_private(inventory, to_yaml({"all": every}))
    write_private(variables, to_yaml(foreign(common)))
    # Results with their output, so that they can be logged.
    return ["-v", "-i", str(inventory), "-e", f"@{variables}"]


class Foreign(str):
    """Text that Ansible must not take for a template."""

    __slots__ = ()


def foreign(value: Any) -> Any:
    """Mark all text of a value, as deep as it is, as `Foreign`."""
    if isinstance(value, str):
        return Foreign(value)
    if isinstance(value, Mapping):
        return {key: foreign(below) for key, below in value.items()}
    return [foreign(below) for below in value] if isinstance(value, list | tuple) else value


def for_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Mark text that looks like a template as Ansible's inventories in JSON do."""
    return {
        key: {"__ansible_unsafe": value}
        if isinstance(value, str) and any(mark in value for mark in _TEMPLATES)
        else value
        for key, value in values.items()
    }


def _needs(facts: Facts) -> dict[str, Any]:
    return {name: given.value for name, given in facts.needs.items()}


def _common(all_vars: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Keep what all machines agree on; that goes in as extra variables, the rest by machine."""
    first, *others = all_vars
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _described(facts: Facts, common: Mapping[str, Any]) -> dict[str, Any]:
    known = describe(facts, secrets=False)
    own = {**facts.vars, **_needs(facts)}
    return {
        **{key: known[key] for key in ("machine", "members", "network", "stack")},
        **{key: value for key, value in own.items() if key not in common},
    }


def _groups(role: Role, targets: Sequence[tuple[Target, Facts]]) -> dict[str, Any]:
    """Name hosts by the role they all carry and by the group each belongs to."""
    groups: dict[str, Any] = {}
    for target, facts in targets:
        for name in (role.name, facts.machine.group):
            group = groups.setdefault(name.replace("-", "_"), {"hosts": {}})
            group["hosts"][target.name.machine] = {}
    return groups


def ssh_options(
    target: Target, known_hosts: Path, proxy: Callable[[Target], list[str]] | None
) -> list[str]:
    """Give the words that make OpenSSH reach a machine, and believe no other."""
    options = {
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": alias(target.name),
        "KexAlgorithms": "curve25519-sha256",
    }
    if proxy is not None:
        options["ProxyCommand"] = shlex.join(proxy(target)).replace("%", "%%")
        options["ProxyUseFdpass"] = "yes"
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def to_yaml(value: Any) -> str:
    """Write YAML for Ansible, in which `Foreign` text is not a template."""
    import yaml  # noqa: PLC0415 - heavy

    class Dumper(yaml.SafeDumper):
        """Writes foreign text so that Ansible takes it as it is."""

    def represent(dumper: yaml.SafeDumper, text: Foreign) -> yaml.ScalarNode:
        tag = dumper.resolve(yaml.ScalarNode, str(text), (True, False))  # type: ignore[no-untyped-call]
        if tag != _TEXT:
            # Ansible makes a truth value of `!unsafe "yes"`.  Such a word cannot be a template.
            return dumper.represent_str(str(text))
        return dumper.represent_scalar("!unsafe", str(text), style='"')

    Dumper.add_representer(Foreign, represent)
    return yaml.dump(value, Dumper=Dumper, sort_keys=False)


def write_private(path: Path, text: str) -> None:
    """Write a file only we can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
