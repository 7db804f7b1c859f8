"""What a scheduler made of a workload, from the jobs' own records."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essaim.plan.comparing import (
    METRICS,
    Clock,
    Execution,
    Measures,
    Submission,
    Trial,
    align,
    measure,
    percentile,
    queue_latencies,
    spread,
    summarise,
)

S = 10**9
T = 1_800_000_000 * S


def submission(first: int, last: int, began: float, ended: float, code: int = 0) -> Submission:
    return Submission(
        first=first,
        last=last,
        began=T + round(began * S),
        ended=T + round(ended * S),
        exit_code=code,
    )


def execution(job: int, machine: str, began: float, ended: float, code: int = 0) -> Execution:
    return Execution(
        job=job,
        machine=machine,
        began=T + round(began * S),
        ended=T + round(ended * S),
        exit_code=code,
    )


def trial(executions, submissions=None, *, jobs=4, **changes) -> Trial:
    its = {
        "jobs": jobs,
        "cores": 1,
        "slots": 2,
        "controller": "c",
        "submissions": submissions or [submission(1, jobs, 0, 0.25)],
        "executions": executions,
        "clocks": [],
    }
    return Trial(**{**its, **changes})


FOUR = [
    execution(1, "a", 1, 2),
    execution(2, "b", 1.5, 2.5),
    execution(3, "a", 3, 4),
    execution(4, "b", 4, 5),
]


def test_four_jobs_on_two_cores():
    found = measure(trial(FOUR))
    assert found.makespan == 5
    assert found.throughput == pytest.approx(4 / 5)
    assert found.utilisation == pytest.approx(100 * 4 / (2 * 5))
    assert (found.submit_p50, found.submit_max) == (0.25, 0.25)
    assert (found.queue_p50, found.queue_p95, found.queue_max) == (1.5, 4, 4)
    assert found.failed == 0


def test_a_job_of_two_cores_keeps_two_busy():
    found = measure(trial([execution(1, "a", 0, 5)], jobs=1, cores=2, slots=4))
    assert found.utilisation == pytest.approx(50)


def test_jobs_that_failed_or_never_ran_count_as_failed_and_not_as_throughput():
    found = measure(trial([FOUR[0], execution(2, "b", 1, 4, code=3)]))
    assert found.failed == 3
    assert found.makespan == 4
    assert found.throughput == pytest.approx(1 / 4)
    assert found.utilisation == pytest.approx(100 * (1 + 3) / (2 * 4))


def test_a_job_that_was_put_back_and_ran_well_has_not_failed_and_was_busy_twice():
    found = measure(trial([execution(1, "a", 1, 2, code=143), execution(1, "b", 3, 4)], jobs=1))
    assert found.failed == 0
    assert found.utilisation == pytest.approx(100 * 2 / (2 * 4))
    assert found.queue_max == 1  # until it first ran


def test_when_no_job_ran_there_is_nothing_to_say_but_that():
    found = measure(trial([]))
    assert found.failed == 4
    assert (found.makespan, found.throughput, found.utilisation, found.queue_p50) == (None,) * 4
    assert found.submit_p50 == 0.25


def test_each_job_waits_since_its_own_submit_command():
    submissions = [submission(1, 1, 0, 0.5), submission(2, 2, 0.5, 1.0)]
    its = trial([execution(1, "a", 2, 3), execution(2, "a", 3, 4)], submissions, jobs=2)
    assert queue_latencies(its) == [2.0, 2.5]


def test_in_a_chain_a_job_waits_since_the_one_before_it_ended():
    its = trial(
        [execution(1, "a", 1, 2), execution(2, "a", 2.25, 3), execution(3, "b", 5, 6)],
        jobs=3,
        chained=True,
    )
    assert queue_latencies(its) == [1.0, 0.25, 2.0]


def test_a_clock_that_is_certainly_wrong_is_put_right():
    clocks = [
        Clock(machine="c", offset=0, error=S // 100),
        Clock(machine="a", offset=60 * S, error=S // 100),
        Clock(machine="b", offset=S // 200, error=S // 100),
    ]
    early = [execution(1, "a", 61, 62), execution(2, "b", 1.5, 2.5)]
    its, error = align(trial(early, jobs=2, clocks=clocks))
    assert [e.began - T for e in its.executions] == [1 * S, round(1.5 * S)]
    assert error == pytest.approx(0.02)
    assert measure(trial(early, jobs=2, clocks=clocks)).makespan == 2.5


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(-(10**12), 10**12), min_size=3),
    st.integers(-(10**12), 10**12),
)
def test_whatever_the_clocks_say_the_measures_are_those_of_one_clock(offsets, ours):
    """Offsets that were measured without error leave no trace."""
    offsets = {**offsets, "c": ours}
    clocks = [Clock(machine=name, offset=offset, error=0) for name, offset in offsets.items()]
    its = trial(FOUR, clocks=[Clock(machine=name, offset=0, error=0) for name in offsets])
    shifted = dataclasses.replace(
        its,
        clocks=clocks,
        executions=[
            dataclasses.replace(
                e, began=e.began + offsets[e.machine], ended=e.ended + offsets[e.machine]
            )
            for e in its.executions
        ],
        submissions=[
            dataclasses.replace(s, began=s.began + ours, ended=s.ended + ours)
            for s in its.submissions
        ],
    )
    assert measure(shifted) == measure(its)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_was_seen_and_reaches_its_share(values, part):
    found = percentile(values, part)
    assert found in values
    assert sum(value <= found for value in values) >= part * len(values)


def test_the_percentile_of_nothing_is_nothing():
    assert percentile([], 0.5) is None


def test_the_spread_is_that_of_what_is_known():
    its = spread([1.0, None, 3.0])
    assert (its.count, its.mean, its.low, its.high) == (2, 2.0, 1.0, 3.0)
    assert its.deviation == pytest.approx(2**0.5)
    alone = spread([4.0])
    assert (alone.mean, alone.deviation) == (4.0, None)
    assert spread([None]).mean is None


def test_every_metric_is_measured_and_summarised():
    names = {field.name for field in dataclasses.fields(Measures)} | {"raise_seconds"}
    assert {metric.key for metric in METRICS} <= names
    measures = dataclasses.asdict(measure(trial(FOUR)))
    found = summarise([measures, {**measures, "makespan": 7.0}])
    assert found["makespan"].mean == 6.0
    assert found["raise_seconds"].mean is None
