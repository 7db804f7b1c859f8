"""The domains of a server that are machines of this control plane."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from essaim.drivers.libvirt.connection import Connection, is_missing
from essaim.drivers.libvirt.definition import Facts, domain_name, read_boot, read_facts
from essaim.drivers.libvirt.inventory import is_adopted
from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.errors import RejectedError
from essaim.model.machines import Observed, Power
from essaim.model.names import NAME, MachineName

#: As many calls as a server answers at once for one connection.
_WIDTH = 5
#: Seconds for which the ports that others have need not be looked at again.  Those of our own
#: machines are reserved, and a port that is taken after all is found out when a machine starts.
_LOOK_EVERY = 30.0
_MADE = re.compile(rf"{NAME.pattern}\.{NAME.pattern}")


@dataclass(frozen=True, slots=True)
class Seen:
    """A domain of ours, as it was a moment ago."""

    domain: Any
    facts: Facts
    number: int  #: libvirt's, of a domain that runs; else -1
    token: str

    @property
    def runs(self) -> bool:
        """Whether it had power."""
        return self.number >= 0

    def observed(self) -> Observed:
        """What the engine is told."""
        detail = {"domain": self.domain.name(), "port": str(self.facts.port)}
        if self.facts.content:
            detail["content"] = self.facts.content
        return Observed(
            name=self.facts.name,
            power=Power.ON if self.runs else Power.OFF,
            address=self.facts.address,
            image=self.facts.image,
            # Whoever starts it: the number is another one, and the token too if it was us.
            boot=f"{self.token}.{self.number}" if self.runs else "",
            detail={**detail, "accelerator": self.facts.accelerator},
            adopted=is_adopted(self.facts),
        )


class Domains:
    """Looks domains up, and keeps hands off those of others."""

    def __init__(self, connection: Connection, plane: str) -> None:
        self._connection = connection
        self._plane = plane
        self._lock = threading.Lock()
        self._ports: set[int] = set()
        self._looked = -_LOOK_EVERY

    def find(self, name: MachineName) -> Seen | None:
        """The domain of a machine; None when there is none.

        RejectedError when the domain of that name is not ours.
        """
        wanted = domain_name(name)
        try:
            domain = self._connection.get().lookupByName(wanted)
            text = domain.XMLDesc(0)
        except libvirt.libvirtError as error:
            if is_missing(error):
                return self._adopted(name)
            raise
        seen = self._seen(domain, text)
        if seen is None or seen.facts.name != name:
            raise self._foreign(wanted, text)
        return seen

    def _foreign(self, wanted: str, text: str) -> RejectedError:
        facts = read_facts(text)
        whose = "another control plane" if facts else "somebody else"
        return RejectedError(
            f"site {self._connection.settings.site}: the domain {wanted} there is of {whose}",
            hint="it is left alone: give the stack or the machine another name",
        )

    def of(self, stack: str) -> list[Seen]:
        """Every machine of a stack, by name."""
        return sorted(
            (
                seen
                for seen in self._among(
                    lambda its: its.startswith(f"{stack}.") or not looks_made(its)
                )
                if seen.facts.stack == stack
            ),
            key=lambda seen: seen.facts.name,
        )

    def _adopted(self, name: MachineName) -> Seen | None:
        """The domain that was adopted as a machine: it keeps the name it had."""
        found = self._among(lambda its: not looks_made(its))
        return next((seen for seen in found if seen.facts.name == name), None)

    def _among(self, wanted: Callable[[str], bool]) -> list[Seen]:
        listed = self._connection.get().listAllDomains(0)
        texts = _texts([domain for domain in listed if wanted(domain.name())])
        seen = (self._seen(domain, text) for domain, text in texts)
        return [each for each in seen if each is not None]

    def _seen(self, domain: Any, text: str) -> Seen | None:
        facts = read_facts(text)
        if facts is None or facts.plane != self._plane:
            return None
        return Seen(domain, facts, domain.ID(), read_boot(text))

    def ports(self) -> set[int]:
        """Access ports that a machine on the server had lately, whoever made it."""
        with self._lock:
            if time.monotonic() - self._looked > _LOOK_EVERY:
                self._ports = {facts.port for facts in self._every()}
                self._looked = time.monotonic()
            return set(self._ports)

    def groups(self) -> set[int]:
        """Multicast groups that machines on the server meet in, whoever made them."""
        return {facts.group for facts in self._every()}

    def _every(self) -> Iterable[Facts]:
        texts = _texts(self._connection.get().listAllDomains(0))
        return [facts for _, text in texts if (facts := read_facts(text))]


def looks_made(name: str) -> bool:
    """Whether a domain has such a name as we give; any other may be one that was adopted."""
    return bool(_MADE.fullmatch(name))


def _texts(domains: Sequence[Any]) -> list[tuple[Any, str]]:
    """The definitions of domains; those that have just gone are left out."""
    if not domains:
        return []
    with ThreadPoolExecutor(min(_WIDTH, len(domains))) as pool:
        return [pair for pair in pool.map(_described, domains) if pair is not None]


def _described(domain: Any) -> tuple[Any, str] | None:
    try:
        return domain, domain.XMLDesc(0)
    except libvirt.libvirtError as error:
        if is_missing(error):
            return None
        raise
