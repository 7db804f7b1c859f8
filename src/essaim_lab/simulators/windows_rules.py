"""What the WinRM simulator's scripts do: a Windows DNS and DHCP server in a few dictionaries.

No PowerShell runs: the simulator knows the scripts of `essaim.servers.windows_scripts` by their
text and does in Python what they say.  Any other text is refused.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from essaim.servers import windows_scripts as scripts


@dataclass(frozen=True, slots=True)
class Held:
    """One record of a zone."""

    zone: str
    name: str
    kind: str
    value: str


class CmdletError(Exception):
    """An error as a cmdlet raises it."""

    def __init__(self, message: str, number: str, category: str = "NotSpecified") -> None:
        super().__init__(message)
        self.said = {"error": message, "id": number, "category": category}


@dataclass(slots=True)
class Windows:
    """The two servers' state, to look at and to change."""

    zones: dict[str, list[Held]] = field(default_factory=dict)
    scopes: list[str] = field(default_factory=list)
    #: Card and name by address.
    reservations: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: What the next script runs into instead of doing its work.
    trouble: list[CmdletError] = field(default_factory=list)

    def run(self, text: str, given: Mapping[str, Any]) -> str:
        """Run a script and give the line it prints."""
        work = self._scripts().get(text)
        if work is None:
            raise ValueError(text)
        try:
            if self.trouble:
                raise self.trouble.pop(0)
            answer = work(**{name.lower(): value for name, value in given.items()})
        except CmdletError as exc:
            answer = exc.said
        return json.dumps(answer, separators=(",", ":"))

    def _scripts(self) -> dict[str, Callable[..., dict[str, Any]]]:
        return {
            scripts.NAME: self._name,
            scripts.UNNAME: self._unname,
            scripts.NAMED: self._named,
            scripts.ADMIT: self._admit,
            scripts.DISMISS: self._dismiss,
            scripts.ADMITTED: self._admitted,
        }

    def _zone(self, name: str) -> list[Held]:
        if name not in self.zones:
            raise CmdletError(
                f"The zone {name} was not found on server DC1.",
                "WIN32 9601,Get-DnsServerResourceRecord",
                "ObjectNotFound",
            )
        return self.zones[name]

    def _name(self, records: str, ttl: int) -> dict[str, Any]:
        del ttl  # how long others remember does not show here
        made: list[Held] = []
        for wanted in map(_held, json.loads(records)):
            zone = self._zone(wanted.zone)
            held = [record for record in zone if record.name == wanted.name]
            if not held:
                zone.append(wanted)
                made.append(wanted)
            elif wanted not in held or _rivals(zone, wanted):
                for record in made:
                    self.zones[record.zone].remove(record)
                other = (_rivals(zone, wanted) or held)[0]
                return {
                    "taken": {
                        "name": wanted.name,
                        "zone": wanted.zone,
                        "wanted": wanted.value,
                        "value": other.value,
                        "kind": other.kind,
                    }
                }
        return {"made": len(made)}

    def _unname(self, first: str, rest: str) -> dict[str, Any]:
        own, *others = map(_held, [json.loads(first), *json.loads(rest)])
        if _rivals(self._zone(own.zone), own):
            return {"left": True}
        for record in (own, *others):
            if record in self._zone(record.zone):
                self.zones[record.zone].remove(record)
        return {"left": False}

    def _named(self, zones: str) -> dict[str, Any]:
        found = [record for zone in json.loads(zones) for record in self._zone(zone)]
        kinds = ("A", "AAAA", "CNAME")
        return {"records": [_fields(record) for record in found if record.kind in kinds]}

    def _admit(self, address: str, card: str, name: str) -> dict[str, Any]:
        if not any(_inside(address, scope) for scope in self.scopes):
            return {"scope": False, "held": []}
        held = [
            {"address": where, "card": whose, "name": named}
            for where, (whose, named) in self.reservations.items()
            if address == where or card == whose
        ]
        if not held:
            self.reservations[address] = (card, name)
        return {"scope": True, "held": held}

    def _dismiss(self, address: str, card: str) -> dict[str, Any]:
        if self.reservations.get(address, ("", ""))[0] == card:
            del self.reservations[address]
        return {"done": True}

    def _admitted(self) -> dict[str, Any]:
        shown = [
            {"address": address, "card": card, "name": name}
            for address, (card, name) in self.reservations.items()
        ]
        return {"reservations": shown}


def _held(given: Mapping[str, str]) -> Held:
    return Held(given["zone"], given["name"], given["kind"], given["value"])


def _fields(record: Held) -> dict[str, str]:
    return {
        "zone": record.zone,
        "name": record.name,
        "kind": record.kind,
        "value": record.value,
    }


def _rivals(zone: list[Held], wanted: Held) -> list[Held]:
    kinds = ("A", "AAAA", "CNAME", "PTR")
    return [r for r in zone if r.name == wanted.name and r.kind in kinds and r != wanted]


def _inside(address: str, scope: str) -> bool:
    return ipaddress.ip_address(address) in ipaddress.ip_network(scope)
