"""Starts the machine of a student who logs in to the remote desktop gateway while it is off."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from essaim.config.rosters import roster_from_json
from essaim.model.errors import EssaimError
from essaim.model.machines import Power
from essaim.plan.rosters import Standing
from essaim.usecases import seats

if TYPE_CHECKING:
    from essaim.config.rosters import Roster
    from essaim.usecases.services import Services

log = logging.getLogger(__name__)

#: Seconds after which nobody waits in front of the screen any more.
LATE = 15 * 60.0
#: Numbers below the newest that may still show up: they are given before they are seen.
BELOW = 200


class LogIn(Protocol):
    """Somebody logged in."""

    @property
    def number(self) -> int:
        """Different for each, and larger than those long before."""

    @property
    def person(self) -> str:
        """Their login."""

    @property
    def ago(self) -> float:
        """Seconds, by the gateway's own clock."""


@runtime_checkable
class TellsLogIns(Protocol):
    """A gateway that tells who logged in."""

    def logins(self) -> Sequence[LogIn]:
        """Those that are not too long ago, the same ones each time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Which were seen before: all up to the newest, but for those that had not shown up."""

    newest: int
    missing: frozenset[int] = frozenset()

    def fresh(self, logins: Iterable[LogIn]) -> list[LogIn]:
        """Those that were not seen before."""
        return [each for each in logins if each.number > self.newest or each.number in self.missing]

    def and_these(self, logins: Iterable[LogIn]) -> Seen:
        """What was seen, with these.

        A gateway whose numbers begin anew has another database: what it has by then is not new.
        """
        numbers = {each.number for each in logins}
        top = max(numbers, default=self.newest)
        if top < self.newest:
            return begun(logins)
        lowest = top - BELOW
        new = range(max(self.newest + 1, lowest), top)
        return Seen(top, frozenset(n for n in (*self.missing, *new) if n >= lowest) - numbers)


def begun(logins: Iterable[LogIn]) -> Seen:
    """What was seen at the first look: whoever came before it did not come for us."""
    numbers = {each.number for each in logins}
    top = max(numbers, default=0)
    return Seen(top, frozenset(range(max(1, top - BELOW), top)) - numbers)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a gateway between two looks, also by the next process."""

    seen: Seen
    waiting: Mapping[str, int] = field(default_factory=dict)  #: machines, and since when

    def text(self) -> str:
        """As it is stored."""
        seen = [self.seen.newest, sorted(self.seen.missing)]
        return json.dumps({"seen": seen, "waiting": dict(self.waiting)}, sort_keys=True)


def kept_from(text: str) -> Kept:
    """What `text` gave."""
    body: dict[str, Any] = json.loads(text)
    newest, missing = body["seen"]
    return Kept(Seen(newest, frozenset(missing)), body["waiting"])


class Waking:
    """Looks who logged in, and starts what is off.

    Who did is written down before anything is started, so that a process that dies loses nobody;
    a log-in that is seen twice finds the machine on.  That somebody opened a connection says
    nothing: a tab that was left open does so by itself, and would undo every stop.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._trouble: dict[str, str] = {}

    def look(self) -> None:
        """Look once at each gateway: one question, however many log in."""
        for site, theirs in self._sites():
            try:
                self._look_at(site, theirs)
                self._trouble.pop(site, None)
            except EssaimError as error:
                # Said once, not at each look; the other sites do not wait for this one.
                if self._trouble.get(site) != error.what:
                    log.warning("who logs in to the desktops of %s: %s", site, error.what)
                self._trouble[site] = error.what

    def _sites(self) -> Iterator[tuple[str, list[Roster]]]:
        """The sites that start machines for those who log in, with their rosters."""
        found: dict[str, list[Roster]] = {}
        for name in self._services.rosters.names():
            body = self._services.rosters.get(name)
            roster = roster_from_json(body) if body is not None else None
            if roster is not None and roster.protocol and _wakes(roster):
                found.setdefault(roster.site.name, []).append(roster)
        yield from found.items()

    def _look_at(self, site: str, theirs: Sequence[Roster]) -> None:
        gateway = self._services.desktops(theirs[0].site)
        if not isinstance(gateway, TellsLogIns):
            return
        name, logins = f"wake.{site}", gateway.logins()
        text = self._services.settings.get(name)
        if text is None:
            self._services.settings.put(name, Kept(begun(logins)).text())
            return
        before, now = kept_from(text), self._services.rosters.now()
        fresh = [each.person for each in before.seen.fresh(logins) if each.ago < LATE]
        came = dict.fromkeys(self._machines(fresh, theirs), now)
        waiting = {m: at for m, at in before.waiting.items() if 0 <= now - at < LATE * 1000}
        kept = Kept(before.seen.and_these(logins), waiting | came)
        if kept != before:
            self._services.settings.put(name, kept.text())
        if kept.waiting and (left := self._start(kept.waiting, theirs)) != kept.waiting:
            self._services.settings.put(name, replace(kept, waiting=left).text())

    def _machines(self, people: Iterable[str], theirs: Sequence[Roster]) -> Iterator[str]:
        """Their machines: none of a person who is on no roster."""
        for person in set(people):
            for roster in theirs:
                student = self._services.rosters.one(roster.name, person)
                if student is not None:
                    yield student.machine

    def _start(self, waiting: Mapping[str, int], theirs: Sequence[Roster]) -> Mapping[str, int]:
        """Start what is off; return the machines to look at again."""
        left = dict(waiting)
        for roster in theirs:
            mine = [machine for machine in waiting if machine.partition("/")[0] == roster.name]
            if not mine:
                continue
            driver = self._services.driver(roster.site)
            powers = {str(each.name): each.power for each in driver.observe(roster.name)}
            for machine in mine:
                if not self._stays(roster, machine, powers.get(machine)):
                    del left[machine]
        return left

    def _stays(self, roster: Roster, machine: str, power: Power | None) -> bool:
        """Start a machine if it is off; whether it has to be looked at again."""
        student = self._services.rosters.of_machine(machine)
        if student is None or student.standing is not Standing.READY or power is Power.ON:
            return False
        if power is not Power.OFF:
            return True  # nobody sees it just now: its node is away
        try:
            seat = seats.Seat(roster, student, own=True)
            seats.begin(self._services, seat, "start", who=f"{student.login} (desktop)")
        except EssaimError:
            return True  # something is done with it just now: it may be off after that
        return False


def _wakes(roster: Roster) -> bool:
    desktop = roster.site.settings.get("desktop")
    return isinstance(desktop, Mapping) and bool(desktop.get("wake"))
