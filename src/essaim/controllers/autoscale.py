"""Measures a service, decides how many replicas it should have, and sees to it.

Any number of processes may run this: one acts, the others stand by.  Nothing that matters is
remembered here: what was seen and wanted is in the database, and the next look makes good what the
last one left half done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from essaim.controllers.leading import PACE, Leader
from essaim.model.errors import EssaimError
from essaim.plan.scaling import (
    Decision,
    Policy,
    Reading,
    Sample,
    decide,
    of_backlog,
    of_readings,
)
from essaim.store.scaling import Look

if TYPE_CHECKING:
    from essaim.scaling.replicas import Replica, Replicas
    from essaim.store.scaling import Scaling

log = logging.getLogger(__name__)

#: Seconds that looks are kept: `status` shows the changes among them.
KEEP = 7 * 86_400.0
#: Looks between two times that old ones are forgotten.
TIDY_EVERY = 500


class Gauge(Protocol):
    """Makes a sample of what there is."""

    def __call__(
        self, replicas: Sequence[Replica], last: Look | None, *, at: int, wanted: int
    ) -> Sample:
        """Measure the load on these replicas, which were seen at `at`."""


class Autoscale:
    """Scales one service."""

    name = "autoscale"

    def __init__(
        self,
        scaling: Scaling,
        leader: Leader,
        replicas: Replicas,
        gauge: Gauge,
        *,
        service: str,
        policy: Policy,
    ) -> None:
        self._scaling, self._leader, self._replicas = scaling, leader, replicas
        self._gauge, self._service, self._policy = gauge, service, policy
        self._trouble = ""
        self._looked = 0

    def reconcile(self) -> float:
        """Look, decide, keep, act: if this is the one that scales."""
        epoch = self._leader.epoch
        if epoch is None:
            return PACE / 2
        began = time.monotonic()
        seen, look = self._look()
        if self._scaling.keep(self._service, epoch, look):
            if look.changed:
                log.info("%s: %s", self._service, look.decision.reason)
            self._act(seen, look.decision.replicas, epoch)
            self._tidy()
        return max(0.0, self._policy.interval - (time.monotonic() - began))

    def close(self) -> None:
        """Let another take over; the replicas go on."""
        self._leader.stop()
        self._replicas.close()

    def _look(self) -> tuple[Sequence[Replica] | None, Look]:
        past = self._scaling.looks(self._service, self._policy.horizon)
        last = past[-1] if past else self._scaling.last(self._service)
        now = self._scaling.now()
        seen = self._seen()
        trouble, self._trouble = self._trouble, ""
        if seen is None:
            wanted = last.decision.replicas if last else self._policy.fewest
            sample = Sample(at=now, wanted=wanted, low=None, high=None)
            reason = "the replicas could not be looked at: nothing is changed"
            return None, Look(sample, Decision(wanted, reason), None, trouble)
        # What is there at the very first look is what somebody wanted.
        wanted = last.decision.replicas if last else max(len(seen), self._policy.fewest)
        sample = self._gauge(seen, last, at=now, wanted=wanted)
        decision = decide([*(each.sample for each in past), sample], self._policy, now)
        counters = {each.id: (each.cpu_seconds, each.started_at) for each in seen}
        return seen, Look(sample, decision, len(seen), trouble, counters)

    def _seen(self) -> Sequence[Replica] | None:
        try:
            return self._replicas.list()
        except EssaimError as error:
            self._failed("cannot look at the replicas", error)
            return None

    def _act(self, seen: Sequence[Replica] | None, wanted: int, epoch: int) -> None:
        """Make what is there what is wanted, unless another has taken over meanwhile."""
        if seen is None or self._leader.epoch != epoch:
            return
        try:
            if len(seen) < wanted:
                self._replicas.add(wanted - len(seen))
            elif len(seen) > wanted:
                # The youngest: the older ones are warm.
                self._replicas.remove([each.id for each in seen[wanted:]])
        except EssaimError as error:
            self._failed(f"there are {len(seen)} instead of {wanted}", error)

    def _failed(self, what: str, error: EssaimError) -> None:
        self._trouble = f"{what}: {error.what}" + (f" ({error.hint})" if error.hint else "")
        log.warning("%s: %s", self._service, self._trouble)

    def _tidy(self) -> None:
        self._looked += 1
        if self._looked % TIDY_EVERY == 1:
            self._scaling.prune(KEEP)


class CpuGauge:
    """How busy the replicas' processors are; `cpus` is what one replica can use at most."""

    def __init__(
        self, policy: Policy, *, cpus: float = 1.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._policy, self._cpus, self._clock = policy, cpus, clock

    def __call__(
        self, replicas: Sequence[Replica], last: Look | None, *, at: int, wanted: int
    ) -> Sample:
        """Measure what they used since the last look."""
        now = self._clock()
        readings = [
            Reading(self._use(each, last, at), max(0.0, now - each.started_at)) for each in replicas
        ]
        return of_readings(readings, at=at, wanted=wanted, policy=self._policy)

    def _use(self, replica: Replica, last: Look | None, at: int) -> float | None:
        if last is None or replica.cpu_seconds is None:
            return None
        before, began = last.counters.get(replica.id, (None, 0.0))
        seconds = (at - last.sample.at) / 1000
        # Started anew under the same name it counts from nothing.
        same = before is not None and abs(began - replica.started_at) < 1.0
        if before is None or not same or replica.cpu_seconds < before:
            return None
        # Of long ago it says how busy it was then, not now.
        if not 0 < seconds <= self._policy.gap:
            return None
        return min(1.0, (replica.cpu_seconds - before) / seconds / self._cpus)


class QueueGauge:
    """What there is to do for workers that carry `each` runs at a time: of all sites, or some."""

    def __init__(
        self,
        policy: Policy,
        scaling: Scaling,
        *,
        each: int,
        sites: Collection[str] | None = None,
    ) -> None:
        self._policy, self._scaling, self._each, self._sites = policy, scaling, each, sites

    def __call__(
        self, replicas: Sequence[Replica], last: Look | None, *, at: int, wanted: int
    ) -> Sample:
        """Count the runs that are carried and that wait."""
        del replicas, last  # it is in the journal whether or not they live
        backlog = self._scaling.backlog(self._sites)
        return of_backlog(backlog, at=at, wanted=wanted, each=self._each, policy=self._policy)
