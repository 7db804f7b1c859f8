"""What a scheduler made of a workload, computed from what jobs recorded of themselves.

Moments are nanoseconds since 1970 by the clock of the machine that noted them; what is computed
from them is in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

SECOND = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One submit command, by the clock of the controller."""

    first: int  #: number of its first job, from 1
    last: int
    began: int
    ended: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One time a job ran, by the clock of the machine it ran on."""

    job: int
    machine: str
    began: int
    ended: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How far a machine's clock is before that of the computer Essaim runs on."""

    machine: str
    offset: int
    error: int  #: by which the offset may be wrong, either way


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A workload that was run once: what was asked for, and all that was recorded."""

    jobs: int
    cores: int  #: of each job
    slots: int  #: cores of all nodes together
    controller: str
    submissions: Sequence[Submission]
    executions: Sequence[Execution]
    clocks: Sequence[Clock]
    chained: bool = False  #: each job waits for the end of the one before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What one trial comes to.  None where no job ended, so that there is nothing to say."""

    makespan: float | None
    throughput: float | None
    utilisation: float | None
    submit_p50: float | None
    submit_p95: float | None
    submit_max: float | None
    queue_p50: float | None
    queue_p95: float | None
    queue_max: float | None
    failed: int
    clock_error: float  #: seconds by which moments of different machines may be misplaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of a comparison, in words."""

    key: str
    title: str
    unit: str
    digits: int
    how: str


METRICS = (
    Metric(
        key="raise_seconds",
        title="Raise",
        unit="s",
        digits=1,
        how="From the plan until every machine is up and every role is ready. Building the image "
        "comes before it and is not counted.",
    ),
    Metric(
        key="makespan",
        title="Makespan",
        unit="s",
        digits=2,
        how="From the moment the first submit command began to the end of the last job.",
    ),
    Metric(
        key="throughput",
        title="Throughput",
        unit="jobs/s",
        digits=2,
        how="Jobs that ended well, divided by the makespan.",
    ),
    Metric(
        key="utilisation",
        title="Utilisation",
        unit="%",
        digits=1,
        how="Core-seconds during which jobs ran, divided by the nodes' cores times the makespan.",
    ),
    Metric(
        key="submit_p50",
        title="Submit p50",
        unit="s",
        digits=3,
        how="Wall time of a submit command on the controller; of an array there is one command.",
    ),
    Metric(key="submit_p95", title="Submit p95", unit="s", digits=3, how=""),
    Metric(key="submit_max", title="Submit max", unit="s", digits=3, how=""),
    Metric(
        key="queue_p50",
        title="Queue p50",
        unit="s",
        digits=3,
        how="For each job, from the beginning of its submit command (in a chain: from the end of "
        "the job before it, if later) to its first instruction. It includes waiting for a free "
        "core, and means something only within the error of the clocks.",
    ),
    Metric(key="queue_p95", title="Queue p95", unit="s", digits=3, how=""),
    Metric(key="queue_max", title="Queue max", unit="s", digits=3, how=""),
    Metric(
        key="failed",
        title="Failed",
        unit="jobs",
        digits=0,
        how="Jobs that never ran, or never ended with exit code 0.",
    ),
)


def measure(trial: Trial) -> Measures:
    """Compute everything from one trial."""
    trial, error = align(trial)
    well = {e.job for e in trial.executions if e.exit_code == 0}
    commands = [(s.ended - s.began) / SECOND for s in trial.submissions]
    waits = queue_latencies(trial)
    span = _makespan(trial)
    busy = sum(e.ended - e.began for e in trial.executions) * trial.cores / SECOND
    return Measures(
        makespan=span,
        throughput=len(well) / span if span else None,
        utilisation=100 * busy / (trial.slots * span) if span and trial.slots else None,
        submit_p50=percentile(commands, 0.5),
        submit_p95=percentile(commands, 0.95),
        submit_max=max(commands, default=None),
        queue_p50=percentile(waits, 0.5),
        queue_p95=percentile(waits, 0.95),
        queue_max=max(waits, default=None),
        failed=trial.jobs - len(well),
        clock_error=error,
    )


def align(trial: Trial) -> tuple[Trial, float]:
    """Put all moments on the controller's clock; also the seconds by which they may be wrong.

    A difference smaller than its own error is left alone: correcting by it would only add noise.
    """
    clocks = {clock.machine: clock for clock in trial.clocks}
    here = clocks.get(trial.controller)
    moves: dict[str, int] = {}
    worst = 0
    for name, clock in clocks.items() if here else ():
        if here is None or name == trial.controller:
            continue
        difference, error = clock.offset - here.offset, clock.error + here.error
        certain = abs(difference) > error
        moves[name] = difference if certain else 0
        worst = max(worst, error if certain else max(error, abs(difference)))
    moved = [
        replace(e, began=e.began - shift, ended=e.ended - shift)
        for e in trial.executions
        for shift in [moves.get(e.machine, 0)]
    ]
    return replace(trial, executions=moved), worst / SECOND


def queue_latencies(trial: Trial) -> list[float]:
    """How long each job that ran had waited, in the order of their numbers; of an aligned trial."""
    asked = {
        job: submission.began
        for submission in trial.submissions
        for job in range(submission.first, submission.last + 1)
    }
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    for e in sorted(trial.executions, key=lambda e: e.began):
        began.setdefault(e.job, e.began)
        ended[e.job] = max(e.ended, ended.get(e.job, 0))
    free = {job + 1: end for job, end in ended.items()} if trial.chained else {}
    return [
        (began[job] - max(asked[job], free.get(job, 0))) / SECOND
        for job in sorted(began)
        if job in asked
    ]


def _makespan(trial: Trial) -> float | None:
    if not (trial.executions and trial.submissions):
        return None
    first = min(s.began for s in trial.submissions)
    return (max(e.ended for e in trial.executions) - first) / SECOND


def percentile(values: Sequence[float], part: float) -> float | None:
    """The smallest value that at least that part of the values does not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over several repetitions."""

    count: int
    mean: float | None
    deviation: float | None  #: of the sample; None for fewer than two repetitions
    low: float | None
    high: float | None


def spread(values: Iterable[float | None]) -> Spread:
    """Mean and spread of the values there are."""
    known = [value for value in values if value is not None]
    return Spread(
        count=len(known),
        mean=fmean(known) if known else None,
        deviation=stdev(known) if len(known) > 1 else None,
        low=min(known, default=None),
        high=max(known, default=None),
    )


def summarise(repetitions: Sequence[Mapping[str, float | None]]) -> dict[str, Spread]:
    """The spread of every metric over the repetitions of one variant."""
    return {metric.key: spread(each.get(metric.key) for each in repetitions) for metric in METRICS}
