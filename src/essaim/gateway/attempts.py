"""Who may try to log in: how often an address may fail, and how many connections may wait.

Connections that have not logged in yet cost memory and time of everybody, so strangers share a
bounded number of places, as with OpenSSH's MaxStartups.  Nodes that exist have places of their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from essaim.model.client_networks import client_network

#: Addresses remembered; when there are more, those who failed longest ago are forgotten.
KEPT = 10_000
#: Connections that may wait in the name of one node: the one it had may not have ended yet.
OF_A_NODE = 2
#: Connections of an address that failed too often may wait: nodes stand beside who fails there.
BESIDE_FAILURES = 10


@dataclass(slots=True)
class _Record:
    failures: float = 0.0
    at: float = 0.0
    waiting: int = 0  #: connections that have not logged in yet


@dataclass(slots=True, eq=False)
class Entry:
    """One connection that has not logged in yet."""

    network: str
    drop: Callable[[], None]  #: ends it, when its place is given to another
    nodes_only: bool  #: its address failed too often: only a node may go on
    node: str = ""  #: whose place it has, once it named a node that exists


class Attempts:
    """Failures for each address, forgiven one by one as time passes; and who waits to log in.

    `most` failures at once are let pass, and one more every `every` seconds; `waiting` connections
    of one address may be busy logging in.  From `start` connections of all addresses on, those of
    an address that has some waiting already are dropped at random, `rate` of them at first and all
    at `full`.  Then one who comes from an address with none takes the place of one of the address
    with the most: holding places keeps nobody out.
    """

    def __init__(
        self,
        most: int = 60,
        *,
        every: float = 1.0,
        waiting: int = 100,
        start: int = 100,
        rate: float = 0.3,
        full: int = 500,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._most = most
        self._every = every
        self._waiting = waiting
        self._start, self._rate, self._full = start, rate, full
        self._total = 0
        self._clock = clock
        self._chance = chance
        self._records: dict[str, _Record] = {}
        #: Who waits, by network.
        self._lines: dict[str, list[Entry]] = {}
        self._nodes: dict[str, list[Entry]] = {}

    def enter(self, address: str, drop: Callable[[], None] = lambda: None) -> Entry | None:
        """Let somebody try to log in, or not; if so, `leave` must follow."""
        record = self._record(address)
        limited = record.failures > self._most - 1
        if record.waiting >= (min(BESIDE_FAILURES, self._waiting) if limited else self._waiting):
            return None
        if record.waiting and self._drops():
            return None
        if self._total >= self._full and not self._make_room(record.waiting):
            return None
        entry = Entry(client_network(address), drop, nodes_only=limited)
        self._total += 1
        record.waiting += 1
        self._lines.setdefault(entry.network, []).append(entry)
        return entry

    def _drops(self) -> bool:
        """Decide at random, more often the more there are."""
        if self._total < self._start:
            return False
        share = (self._total - self._start) / max(1, self._full - self._start)
        return self._chance() < self._rate + (1 - self._rate) * share

    def _make_room(self, waiting: int) -> bool:
        """End one of the address with the most, if that has more than the one who comes."""
        longest = max(self._lines.values(), key=len)
        if len(longest) <= waiting:
            return False
        given_up = longest[int(self._chance() * len(longest)) % len(longest)]
        self.leave(given_up)
        given_up.drop()
        return True

    def take_node_place(self, entry: Entry, node: str) -> None:
        """Move one who named a node that exists to that node's places.

        The oldest goes when there are too many: who holds places in a node's name keeps it out no
        longer than it takes to connect again.
        """
        if entry.node:
            return
        self.leave(entry)
        entry.node = node
        line = self._nodes.setdefault(node, [])
        line.append(entry)
        if len(line) > OF_A_NODE:
            oldest = line[0]
            self.leave(oldest)
            oldest.drop()

    def leave(self, entry: Entry) -> None:
        """Whoever entered has logged in or gone away.  Nothing when their place was given up."""
        if entry.node:
            node, entry.node = entry.node, ""
            self._nodes[node].remove(entry)
            if not self._nodes[node]:
                del self._nodes[node]
            return
        line = self._lines.get(entry.network, [])
        if entry not in line:
            return
        line.remove(entry)
        if not line:
            del self._lines[entry.network]
        self._total -= 1
        self._records[entry.network].waiting -= 1

    def failed(self, address: str) -> None:
        """Somebody showed what is not a right key."""
        self._record(address).failures += 1

    def forgive(self, address: str, failures: int) -> None:
        """Whoever failed so often had the right key after all."""
        record = self._record(address)
        record.failures = max(0.0, record.failures - failures)

    def _record(self, address: str) -> _Record:
        name, now = client_network(address), self._clock()
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
