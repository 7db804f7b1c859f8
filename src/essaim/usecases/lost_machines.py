"""Give machines up that will never come back: without their site, as far as servers answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from essaim.config.serial import stack_to_json
from essaim.model.errors import EssaimError, HeldError, SetupError, TransientError
from essaim.model.machines import Cards, Forgets, Reachable
from essaim.model.names import MachineName
from essaim.plan.rosters import Student, desktop_of, host_of
from essaim.usecases import rosters
from essaim.usecases.stacks import refuse_kept, stored_stack

if TYPE_CHECKING:
    from essaim.config.rosters import Roster
    from essaim.model.stacks import Machine, Site
    from essaim.usecases.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """A machine that is given up, and what may be left of it at its site."""

    machine: str
    address: str
    ids: Mapping[str, str]  #: such as vmid → 50123

    @override
    def __str__(self) -> str:
        ids = ", ".join(f"{key} {value}" for key, value in self.ids.items())
        return "  ".join(part for part in (self.machine, self.address, ids) if part)


def check_reachable(services: Services, site: Site) -> None:
    """SiteAwayError, within some seconds, when a site does not answer: nothing can be done then."""
    driver = services.driver(site)
    if isinstance(driver, Reachable):
        driver.check_reachable()


def of_roster(services: Services, name: str, logins: Collection[str] = ()) -> list[LeftBehind]:
    """What `forget_roster` would give up; changes nothing."""
    roster = rosters.stored(services, name)
    return [
        _left(services, roster.site, each.machine, each.address)
        for each in _chosen(services, name, logins)
        if each.address
    ]


def of_stack(services: Services, name: str) -> list[LeftBehind]:
    """What `forget_stack` would give up; changes nothing."""
    refuse_kept(services, name)
    stack, _lab = stored_stack(services, name)
    return [_left(services, stack.site, str(each.name), each.address) for each in stack.machines]


def forget_roster(services: Services, name: str, logins: Collection[str] = ()) -> list[str]:
    """Forget a roster, or some of its machines, without touching its site.

    Names, leases and desktops are taken away as far as their servers answer; what may be left there
    is returned in words.  Nothing of anybody else is touched.  HeldError while machines of it are
    worked on.
    """
    roster = rosters.stored(services, name)
    chosen = _chosen(services, name, logins)
    busy = services.rosters.works.busy(name)
    if any(each.machine in busy for each in chosen):
        raise HeldError(f"{name}: its machines are being worked on", hint="wait for it")
    left = _release_records(services, roster, [each for each in chosen if each.address])
    _forget_machines(services, roster.site, [each.machine for each in chosen])
    services.rosters.forget(roster.site.name, [each.machine for each in chosen])
    _drop_from_stack(services, name, {each.machine for each in chosen})
    if not logins:
        services.rosters.drop(name)
        services.keyring.forget(name)
        services.stacks.drop_stack(name)
    return left


def forget_stack(services: Services, name: str) -> None:
    """Forget a stack without touching its site."""
    refuse_kept(services, name)
    stack, _lab = stored_stack(services, name)
    _forget_machines(services, stack.site, [str(each.name) for each in stack.machines])
    services.keyring.forget(name)
    services.stacks.drop_stack(name)


def _chosen(services: Services, name: str, logins: Collection[str]) -> list[Student]:
    known = services.rosters.students(name)
    rosters.check_logins(known, logins)
    return [each for login, each in known.items() if not logins or login in logins]


def _left(services: Services, site: Site, machine: str, address: str) -> LeftBehind:
    driver = services.driver(site)
    its = driver.left_behind(MachineName.parse(machine)) if isinstance(driver, Forgets) else {}
    return LeftBehind(machine=machine, address=address, ids=its)


def _forget_machines(services: Services, site: Site, machines: Sequence[str]) -> None:
    driver = services.driver(site)
    for each in machines:
        if isinstance(driver, Forgets):
            driver.forget(MachineName.parse(each))
        services.stacks.forget_machine(each)


def _drop_from_stack(services: Services, name: str, gone: Collection[str]) -> None:
    if services.stacks.get_stack(name) is None:
        return
    stack, lab = stored_stack(services, name)
    machines = tuple(each for each in stack.machines if str(each.name) not in gone)
    body = stack_to_json(replace(stack, machines=machines))
    services.stacks.put_stack(name, {"stack": body, "lab": str(lab)})


def _release_records(services: Services, roster: Roster, those: Sequence[Student]) -> list[str]:
    """Take records of machines away from each server of the site; says what may be left."""
    site = roster.site
    machines = [rosters.machine(roster, each.person, each.address) for each in those]
    left = []
    for make, take in (
        (services.desktops, _withdraw),
        (services.addresses, lambda server, each: _dismiss(services, site, server, each)),
        (services.names, _unname),
    ):
        if said := _from_server(lambda make=make: make(site), take, machines):  # type: ignore[misc]
            left.append(said)
    return left


def _from_server(
    make: Callable[[], Any], take: Callable[[Any, Machine], None], machines: Sequence[Machine]
) -> str:
    """Take the records of all machines from one server; what it says when it does not answer."""
    try:
        server = make()
        for each in machines if server is not None else ():
            try:
                take(server, each)
            except (TransientError, SetupError):
                raise
            except EssaimError:
                continue  # it belongs to somebody else, and stays theirs
    except EssaimError as error:  # it would not answer for the others either
        return error.what
    return ""


def _withdraw(server: Any, machine: Machine) -> None:
    desktop = desktop_of(machine)
    if desktop is not None:
        server.withdraw(desktop.name, desktop.group)


def _unname(server: Any, machine: Machine) -> None:
    host = host_of(machine)
    if host.name:
        server.unname(host)


def _dismiss(services: Services, site: Site, server: Any, machine: Machine) -> None:
    driver = services.driver(site)
    host = host_of(machine, driver.card(machine.name) if isinstance(driver, Cards) else "")
    if host.mac:
        server.dismiss(host)
