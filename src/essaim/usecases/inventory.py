"""Every machine of a site, and how one that somebody else made comes under our care."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.config.projected import play_of
from essaim.config.serial import machine_to_json, stack_from_json, stack_to_json
from essaim.model.errors import EssaimError, RejectedError, UnknownError
from essaim.model.machines import Dials, HostKeys, Inventory, Templates
from essaim.model.names import MachineName
from essaim.model.spelling import meant
from essaim.remote.keyring import alias
from essaim.usecases.stacks import refuse_kept, refuse_move, stored_stack
from essaim.workflows.tools import machine_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.config.compose import Composed
    from essaim.model.machines import Found
    from essaim.model.stacks import Machine, Site, Stack
    from essaim.usecases.services import Services

_ASK_IT = "in the machine: cat /etc/ssh/ssh_host_ed25519_key.pub"
HOST_KEY = re.compile(r"(?:ssh|ecdsa)-[a-z0-9-]+ [A-Za-z0-9+/]+=*")


def list_all(services: Services, site: str, lab: str) -> Sequence[Found]:
    """List every machine of a site that our account there may see.  Changes nothing."""
    return _driver(services, _site(site, lab)).inventory()


def find(services: Services, site: str, lab: str, which: str) -> Found:
    """Find a machine of a site by its id, the beginning of it, or its name."""
    found = list_all(services, site, lab)
    exact = [one for one in found if which in (one.id, one.name)]
    alike = exact or [one for one in found if len(which) > 3 and one.id.startswith(which)]  # noqa: PLR2004 - less would be chance
    if len(alike) == 1:
        return alike[0]
    if alike:
        names = ", ".join(f"{one.id} ({one.name})" for one in alike)
        raise UnknownError(f"{which} names {len(alike)} machines of {site}", hint=names)
    _refuse_template(services, site, lab, which)
    known = [word for one in found for word in (one.id, one.name)]
    hint = meant(which, known) or f"essaim inventory --site {site} lists them"
    raise UnknownError(f"site {site} has no machine {which}", hint=hint)


def _refuse_template(services: Services, site: str, lab: str, which: str) -> None:
    driver = services.driver(_site(site, lab))
    for one in driver.templates() if isinstance(driver, Templates) else ():
        if which in (one.id, one.name):
            raise UnknownError(
                f"{which} is a template of site {site}, not a machine: it cannot be adopted",
                hint=f"make machines from it with an image (builder: template, template: "
                f"{one.name}), or adopt a clone of it",
            )


def adopt(
    services: Services, composed: Composed, name: MachineName, which: Found, host_key: str = ""
) -> Machine:
    """Take a machine of a stack's site under our care, as the one the stack calls `name`.

    `host_key` is the only key that is believed there, `ssh-ed25519 AAAA…`; when it is not given,
    it is read in the machine, where the site can do that.

    It counts as made from the image the stack says, so that the next `up` configures it and does
    not make it anew.  Its disk, its power and its definition stay as they are.  The stack is kept
    as after `up`, so that `status` and `down` know it.
    """
    stack = composed.stack
    if host_key and not HOST_KEY.fullmatch(host_key):
        raise RejectedError(
            f"{host_key!r} is not a host key, such as ssh-ed25519 AAAA…", hint=_ASK_IT
        )
    machine = next((one for one in stack.machines if one.name == name), None)
    if machine is None:
        names = [str(one.name) for one in stack.machines]
        raise UnknownError(
            f"the stack describes no machine {name}", hint=meant(str(name), names, kind="it has")
        )
    refuse_kept(services, stack.name)
    refuse_move(services, stack)
    there = {one.name for one in services.driver(stack.site).observe(stack.name)}
    if name in there and which.owner != str(name):
        raise RejectedError(
            f"{name} is there already", hint="remove it first, or adopt it under another name"
        )
    driver = _driver(services, stack.site)
    key = host_key or _read_key(driver, stack.site, which)
    counts_as = replace(machine, image=stack.images[machine.image].digest)
    driver.adopt(which.id, counts_as, stack.network)
    services.keyring.pin(name, key)
    _keep(services, composed, machine)
    return machine


def _read_key(driver: Inventory, site: Site, which: Found) -> str:
    """Read the host key in a machine that is not ours yet; RejectedError says how to give it."""
    why = f"site {site.name} has no way into machines that others made"
    if isinstance(driver, HostKeys):
        try:
            return driver.found_host_key(which.id)
        except EssaimError as error:
            why = error.what
    raise RejectedError(
        f"say the host key of {which.name} with --host-key 'ssh-ed25519 AAAA…': it cannot be read "
        f"here ({why})",
        hint=_ASK_IT,
    )


def _keep(services: Services, composed: Composed, machine: Machine) -> None:
    """Keep the stack with the machine; what is kept of others of the stack stays as it is."""
    stack, lab = composed.stack, composed.lab
    body = services.stacks.get_stack(stack.name)
    if body is not None:
        before, lab = stack_from_json(body["stack"]), Path(body["lab"])
        others = tuple(one for one in before.machines if one.name != machine.name)
        images = {**before.images, machine.image: stack.images[machine.image]}
        roles = {**before.roles, **{name: stack.roles[name] for name in machine.roles}}
        stack = replace(before, machines=(*others, machine), images=images, roles=roles)
    services.stacks.put_stack(stack.name, {"stack": stack_to_json(stack), "lab": str(lab)})
    services.stacks.put_machine(str(machine.name), stack.name, machine_to_json(machine))


def give_back(services: Services, site: str, lab: str, which: Found) -> MachineName:
    """Let go of an adopted machine, which stays there as it is."""
    if not which.owner or which.detail.get("note") != "adopted":
        raise RejectedError(
            f"{which.name} was not adopted",
            hint="essaim down removes what Essaim made; strangers' machines are never touched",
        )
    name = MachineName.parse(which.owner)
    services.remote.drop(name)
    services.driver(_site(site, lab)).destroy(name)
    services.stacks.forget_machine(str(name))
    if not services.stacks.machines(name.stack):  # it was the last one
        services.keyring.forget(name.stack)
        services.stacks.drop_stack(name.stack)
    return name


def for_ansible(services: Services, stacks: Sequence[str] = ()) -> dict[str, Any]:
    """Give the machines of our stacks, or of some, as Ansible asks for an inventory.

    A machine is called by its full name where it has one, else STACK.MACHINE.  Groups are the
    stacks, the groups in them, and those that projects name.  Nothing is asked of any site.
    """
    hosts: dict[str, dict[str, Any]] = {}
    groups: dict[str, list[str]] = {}
    for name in stacks or services.stacks.list_stacks():
        stack, _lab = stored_stack(services, name)
        for machine in stack.machines:
            called = machine.labels.get("host") or alias(machine.name)
            hosts[called] = _variables(services, stack, machine)
            for group in _groups(stack, machine):
                groups.setdefault(group, []).append(called)
    return {
        "_meta": {"hostvars": hosts},
        "all": {"children": ["ungrouped", *sorted(groups)]},
        **{group: {"hosts": members} for group, members in groups.items()},
    }


def _variables(services: Services, stack: Stack, machine: Machine) -> dict[str, Any]:
    from essaim.remote.inventory import for_json  # noqa: PLC0415 - few ask for an inventory
    from essaim.remote.playing import connection  # noqa: PLC0415 - few ask for an inventory

    driver = services.driver(stack.site)
    proxy = (
        (lambda target: driver.proxy_command(target.name)) if isinstance(driver, Dials) else None
    )
    known = services.keyring.known_hosts_file([each.name for each in stack.machines])
    target = machine_target(stack.site, driver, services.keyring, machine)
    reached = connection(target, keyring=services.keyring, known_hosts=known, proxy=proxy)
    names = {"essaim_machine": str(machine.name), "essaim_site": stack.site.name}
    return for_json({**names, **reached})


def _groups(stack: Stack, machine: Machine) -> list[str]:
    play = play_of(stack)
    names = [stack.name, f"{stack.name}_{machine.group}", *([play.group] if play else [])]
    return list(dict.fromkeys(name.replace("-", "_") for name in names))


def _site(name: str, lab: str) -> Site:
    from essaim.config.sites import find_site  # noqa: PLC0415 - Hydra takes a second to import

    return find_site(name, lab)


def _driver(services: Services, site: Site) -> Inventory:
    driver = services.driver(site)
    if not isinstance(driver, Inventory):
        raise RejectedError(
            f"site {site.name}: {site.driver} knows no machines but its own",
            hint="essaim status lists those",
        )
    return driver
