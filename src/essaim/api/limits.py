"""How often somebody may try."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError
from essaim.store.tries import Try

if TYPE_CHECKING:
    from essaim.store.tries import Tries

#: So many keys are remembered at most: an attacker with many addresses shall not fill the memory.
MOST_KEYS = 100_000
SLACK = 1e-6  #: sums of floats are not exact


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once, and as many again in `seconds`."""

    most: int
    seconds: float

    @property
    def gap(self) -> float:
        """Seconds between two, when all come evenly."""
        return self.seconds / self.most


class TooManyError(EssaimError):
    """The caller tries too often."""

    code = "too-many"

    def __init__(self, wait: float) -> None:
        super().__init__("too many tries", hint=f"try again in {math.ceil(wait)} s")
        self.wait = wait


class Limiter:
    """Counts tries by kind and key.  Safe to share between threads.

    Those of this process are counted in memory; with `shared`, those it would allow are then
    counted with all other processes'.  So a flood at one process is no flood of the database.
    """

    def __init__(
        self,
        rates: Mapping[str, Rate],
        clock: Callable[[], float],
        shared: Tries | None = None,
    ) -> None:
        self._rates = rates
        self._shared = shared
        self._clock = clock
        self._lock = threading.Lock()
        #: When each key will have made up for all its tries.
        self._even_at: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._even_at)

    def take(self, keys: Mapping[str, str]) -> None:
        """Count one try for each kind and key, or none and TooManyError when one is used up."""
        now = self._clock()
        with self._lock:
            wait = max(self._wait(kind, key, now) for kind, key in keys.items())
            if wait > 0:
                raise TooManyError(wait)
            if len(self._even_at) >= MOST_KEYS:
                self._forget(now)
            for kind, key in keys.items():
                even = max(self._even_at.get((kind, key), now), now)
                self._even_at[kind, key] = even + self._rates[kind].gap
        if self._shared is not None:
            wait = self._shared.take([self._try(kind, key) for kind, key in keys.items()])
            if wait > 0:
                raise TooManyError(wait)

    def _try(self, kind: str, key: str) -> Try:
        rate = self._rates[kind]
        return Try(kind=kind, key=key, gap=rate.gap, within=rate.seconds)

    def give_back(self, keys: Mapping[str, str]) -> None:
        """Take back one try of each kind and key, which turned out not to be a guess."""
        if self._shared is not None:
            for kind, key in keys.items():
                self._shared.give_back(self._try(kind, key))
        with self._lock:
            for kind, key in keys.items():
                if (kind, key) in self._even_at:
                    self._even_at[kind, key] -= self._rates[kind].gap

    def _wait(self, kind: str, key: str, now: float) -> float:
        rate = self._rates[kind]
        even = max(self._even_at.get((kind, key), now), now)
        late = even + rate.gap - now - rate.seconds
        return late if late > SLACK else 0.0

    def _forget(self, now: float) -> None:
        kept = {key: at for key, at in self._even_at.items() if at > now}
        # All still count: the oldest go, for what else could.
        surplus = sorted(kept, key=kept.__getitem__)[: max(0, len(kept) - MOST_KEYS // 2)]
        for key in surplus:
            del kept[key]
        self._even_at = kept
