"""What machines hold at a site: an id, a card, an address, and ids they were set aside from."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from typing import Protocol

from essaim.drivers.checks import address_of
from essaim.drivers.proxmox.cluster import Cluster
from essaim.drivers.proxmox.numbers import card_address, card_candidates, id_candidates
from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import RejectedError
from essaim.model.machines import Reservations
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network

#: Between the name of a machine and the id it does not have any more.
_ASIDE = "#"
#: Ids that are tried before all of them are.
_FEW = 128
#: Seconds for which an id is left alone that the cluster refused as taken.
_REFUSED_FOR = 3600.0
#: Before such an id and the second in which it was refused.
_REFUSED = "refused"


class Held(Reservations, Protocol):
    """Reservations that can be listed."""

    def held(self, site: str, kind: str) -> dict[int, str]:
        """Who holds what, by number."""

    def number(self, site: str, kind: str, holder: str) -> int | None:
        """The number a holder has; None when it has none."""


class Holdings:
    """Reservations of one control plane at one site, by the names of machines."""

    def __init__(
        self, reservations: Held, cluster: Cluster, settings: Settings, plane: str
    ) -> None:
        self._reservations = reservations
        self._cluster = cluster
        self._settings = settings
        self._plane = plane
        self._cards: dict[MachineName, str] = {}

    def id_of(self, name: MachineName) -> int | None:
        """The id a machine has; None when it has none."""
        return self._reservations.number(self._settings.site, "vmid", str(name))

    def card(self, name: MachineName, *, begun: bool = False) -> str:
        """The address of a machine's card, also before there is one.

        `begun`: the machine is being made here, so that nobody else can have given it up.
        """
        if not (begun and name in self._cards):
            reserve, site = self._reservations.reserve, self._settings.site
            number = reserve(site, "mac", str(name), card_candidates(name, self._plane))
            self._cards[name] = card_address(number)
        return self._cards[name]

    def address(self, machine: Machine, network: Network) -> None:
        """Reserve a machine's address; RejectedError when another machine of the stack has it."""
        kind, wanted = f"address.{machine.name.stack}", int(address_of(machine, network))
        reserve, site, holder = self._reservations.reserve, self._settings.site, str(machine.name)
        try:
            if reserve(site, kind, holder, [wanted]) != wanted:
                reserve(site, kind, holder, [wanted], anew=True)
        except RejectedError as error:
            raise RejectedError(
                f"{machine.name}: {machine.address} is the address of another machine of the stack"
            ) from error

    def id(self, name: MachineName, *, anew: bool = False) -> int:
        """The id of a machine: the one it has, else a free one; with `anew` another one."""
        settings, has = self._settings, None if anew else self.id_of(name)
        if has is not None:
            return has
        unseen = self.refused()
        taken = {*self._cluster.listing().guests, *unseen, *self.aside()}

        def reserve(most: int | None) -> int:
            candidates = id_candidates(name, self._plane, settings.ids, taken)
            few = islice(candidates, most)
            return self._reservations.reserve(settings.site, "vmid", str(name), few, anew=anew)

        with suppress(RejectedError):
            return reserve(_FEW)
        try:
            return reserve(None)  # seldom: the whole range has to be gone through
        except RejectedError as error:
            first, last = settings.ids
            some = f", {len(unseen)} of them by guests this token cannot see" if unseen else ""
            raise RejectedError(
                f"site {settings.site}: every VMID of its ids, {first}-{last}, is taken{some}",
                hint="widen ids in its site file, or remove machines nobody needs",
            ) from error

    def refuse(self, number: int) -> None:
        """Leave an id alone for a while, in all processes: a guest has it that we cannot see."""
        site, holder = self._settings.site, f"{_REFUSED}{_ASIDE}{number}{_ASIDE}{time.time():.0f}"
        with suppress(RejectedError):  # another process has been told the same
            self._reservations.reserve(site, "refused", holder, [number])

    def refused(self) -> frozenset[int]:
        """The ids that were refused as taken lately."""
        site, old = self._settings.site, time.time() - _REFUSED_FOR
        held = self._reservations.held(site, "refused")
        for holder in held.values():
            if float(holder.rpartition(_ASIDE)[2]) < old:
                self._reservations.release(site, holder)
        left = {n for n, holder in held.items() if float(holder.rpartition(_ASIDE)[2]) >= old}
        return frozenset(left)

    def owners(self) -> dict[int, str]:
        """Which machine each reserved id is for."""
        return self._reservations.held(self._settings.site, "vmid")

    def claim(self, machine: Machine, network: Network, number: int) -> None:
        """Reserve what a machine that is there already has."""
        self.address(machine, network)
        reserve, site, holder = self._reservations.reserve, self._settings.site, str(machine.name)
        if reserve(site, "vmid", holder, [number]) != number:
            raise RejectedError(f"{machine.name} is there already")

    def release(self, name: MachineName) -> None:
        """Give up all a machine has; what was set aside stays remembered."""
        self._cards.pop(name, None)
        self._reservations.release(self._settings.site, str(name))

    def set_aside(self, name: MachineName, number: int) -> None:
        """Remember an id under which something half made of a machine is left."""
        holder = f"{name}{_ASIDE}{number}"
        with suppress(RejectedError):  # it is set aside already, for another one
            self._reservations.reserve(self._settings.site, "leftover", holder, [number])

    def is_aside(self, name: MachineName, number: int) -> bool:
        """Whether something half made of a machine may be left under that id."""
        holder = f"{name}{_ASIDE}{number}"
        return self._reservations.number(self._settings.site, "leftover", holder) == number

    def aside(self) -> dict[int, MachineName]:
        """What was set aside, and of which machine it was."""
        left = self._reservations.held(self._settings.site, "leftover")
        return {n: MachineName.parse(holder.partition(_ASIDE)[0]) for n, holder in left.items()}

    def forget_aside(self, name: MachineName, number: int) -> None:
        """It is gone."""
        self._reservations.release(self._settings.site, f"{name}{_ASIDE}{number}")
