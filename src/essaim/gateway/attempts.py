"""How often an address may fail to log in."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

#: Addresses remembered; when there are more, those who failed longest ago are forgotten.
KEPT = 10_000


@dataclass(slots=True)
class _Record:
    failures: float = 0.0
    at: float = 0.0
    waiting: int = 0  #: connections that have not logged in yet


class Attempts:
    """Failures for each address, forgiven one by one as time passes.

    `most` failures at once are let pass, and one more every `every` seconds; `waiting` connections
    of one address may be busy logging in, and `everywhere` connections of all.
    """

    def __init__(
        self,
        most: int = 60,
        *,
        every: float = 1.0,
        waiting: int = 100,
        everywhere: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._every = every
        self._waiting = waiting
        self._everywhere = everywhere
        self._total = 0
        self._clock = clock
        self._records: dict[str, _Record] = {}

    def enter(self, address: str) -> bool:
        """Say whether somebody may try to log in; if so, `leave` must follow."""
        record = self._record(address)
        if record.failures > self._most - 1 or record.waiting >= self._waiting:
            return False
        if self._total >= self._everywhere:
            return False
        self._total += 1
        record.waiting += 1
        return True

    def leave(self, address: str) -> None:
        """Whoever entered has logged in or gone away."""
        self._total -= 1
        self._record(address).waiting -= 1

    def failed(self, address: str) -> None:
        """Somebody showed what is not a right key."""
        self._record(address).failures += 1

    def forgive(self, address: str, failures: int) -> None:
        """Whoever failed so often had the right key after all."""
        record = self._record(address)
        record.failures = max(0.0, record.failures - failures)

    def _record(self, address: str) -> _Record:
        name, now = network(address), self._clock()
        record = self._records.pop(name, None) or _Record(at=now)
        self._records[name] = record  # the last one used is at the end
        record.failures = max(0.0, record.failures - (now - record.at) / self._every)
        record.at = now
        self._prune()
        return record

    def _prune(self) -> None:
        if len(self._records) <= KEPT:
            return
        # One with connections comes back to `leave` them.
        idle = next((name for name, one in self._records.items() if not one.waiting), None)
        if idle is not None:
            del self._records[idle]


class Seldom:
    """Lets a thing happen `most` times at once, and once more every `every` seconds, for each key.

    Of more keys than are kept, those not seen for longest are forgotten.
    """

    def __init__(
        self, most: int, *, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._every = every
        self._clock = clock
        self._seen: dict[Hashable, tuple[float, float]] = {}  #: how often, as of when

    def allows(self, key: Hashable) -> bool:
        """Say whether it may happen now, and count it if so."""
        now = self._clock()
        count, at = self._seen.pop(key, (0.0, now))
        count = max(0.0, count - (now - at) / self._every)
        may = count <= self._most - 1
        self._seen[key] = (count + may, now)
        if len(self._seen) > KEPT:
            del self._seen[next(iter(self._seen))]
        return may


def network(address: str) -> str:
    """A person has one IPv4 address, but a whole /64 of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:  # noqa: PLR2004 - IPv4
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
