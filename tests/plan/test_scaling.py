"""How many replicas there should be (R-D8)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essaim.plan.scaling import (
    Backlog,
    Policy,
    Reading,
    Sample,
    decide,
    of_backlog,
    of_readings,
)
from plan.curves import (
    changes,
    flapping,
    gone,
    milliseconds,
    night,
    play,
    ramp,
    spike,
    step,
)

POLICY = Policy()
NOW = milliseconds(0)


def steady(load, wanted, policy=POLICY, *, seconds=0.0, **more):
    """As many samples as there are in so many seconds, all alike."""
    count = int((seconds or policy.horizon) / policy.interval)
    every = round(policy.interval * 1000)
    return [
        Sample(at=NOW - every * back, wanted=wanted, **{"low": load, "high": load, **more})
        for back in reversed(range(count + 1))
    ]


def decided(history, policy=POLICY):
    return decide(history, policy, NOW)


# Load curves


def test_a_step_up_is_followed_within_a_minute_and_a_step_down_only_later():
    looks = play(step(0.3, 1.9, 300), POLICY, 900)
    made = changes(looks)
    assert made[0][0] - 300 <= POLICY.rise + POLICY.interval
    assert looks[-1].after == 4  # 1.9 / 4 = 48 %; three would be at 63 %
    assert made[-1][0] <= 300 + 120
    back = changes(play(step(1.9, 0.3, 300), POLICY, 1800, first=4))
    assert [after for _, _, after in back] == [3, 2, 1]
    assert back[0][0] - 300 >= POLICY.fall


def test_a_ramp_is_climbed_step_by_step_and_never_back():
    looks = play(ramp(0.1, 3.0, 1800), POLICY, 2400)
    counts = [look.after for look in looks]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_a_short_spike_moves_nothing():
    assert changes(play(spike(0.4, 1.0, 300, 5), POLICY, 1200)) == []


def test_a_long_spike_is_followed_and_left_again():
    looks = play(spike(0.4, 2.5, 300, 120), POLICY, 2400)
    assert max(look.after for look in looks) >= 4
    assert looks[-1].after == 1
    assert [before - after for _, before, after in changes(looks) if before > after] == [1] * (
        max(look.after for look in looks) - 1
    )


def test_flapping_around_the_target_changes_nothing():
    near = POLICY.target * 2
    assert changes(play(flapping(near * 0.93, near * 1.07, 20), POLICY, 3600, first=2)) == []


def test_flapping_between_little_and_much_does_not_make_replicas_come_and_go():
    made = changes(play(flapping(0.3, 1.9, 120), POLICY, 7200))
    assert all(after > before for _, before, after in made)


def test_a_day_and_a_night():
    policy = replace(POLICY, interval=60.0, rise=120.0, fall=900.0)
    looks = play(night(3.0), policy, 2 * 86_400)
    by_hour = {look.at / 3600: look.after for look in looks}
    assert (by_hour[1], by_hour[12], by_hour[23.5], by_hour[36]) == (1, 5, 1, 5)
    made = changes(looks)
    # Each replica comes and goes once a day.
    assert len(made) == 2 * 2 * 4


def test_a_sensor_that_is_missing_never_removes_anything():
    quiet = gone(step(1.9, 0.2, 300), 300, 1500)
    looks = play(quiet, POLICY, 2400, first=4)
    made = changes(looks)
    assert made[0][0] >= 1500 + POLICY.fall  # seen to be quiet for so long, not believed to be
    assert looks[-1].after == 1
    unseen = next(look for look in looks if look.at == 900)
    assert "could be measured" in unseen.reason


def test_one_silent_replica_of_many_is_enough_to_remove_none():
    quiet = [Reading(0.05, 1000.0)] * 3
    sample = of_readings([*quiet, Reading(None, 1000.0)], at=NOW, wanted=4, policy=POLICY)
    assert sample.low == pytest.approx(0.15)
    assert sample.high is None
    busy = [Reading(1.0, 1000.0)] * 3
    sample = of_readings([*busy, Reading(None, 1000.0)], at=NOW, wanted=4, policy=POLICY)
    assert decided(steady(sample.low, 4, high=None)).replicas == 5  # what is known is too much


def test_work_of_starting_is_not_load():
    new = Reading(1.0, POLICY.warm_up - 1)
    sample = of_readings([Reading(0.2, 1000.0), new], at=NOW, wanted=2, policy=POLICY)
    assert sample.low == pytest.approx(0.2)
    assert sample.high == pytest.approx(1.2)
    assert decided(steady(sample.low, 2, high=sample.high)).replicas == 2


def test_nothing_there_says_nothing():
    sample = of_readings([], at=NOW, wanted=2, policy=POLICY)
    assert (sample.low, sample.high) == (None, None)
    assert decided([sample]).replicas == 2


# What it says


@pytest.mark.parametrize(
    ("load", "wanted", "count", "words"),
    [
        (0.95, 1, 2, "1 replica is 95% busy, above 60%: 2 replicas will do"),
        (2.9, 1, 3, "5 replicas would do, 3 is one step"),
        (5.9, 6, 6, "but 6 is the most there may be"),
        (5.9, 5, 6, "10 replicas would do, 6 is the most there may be"),
        (1.1, 2, 2, "2 replicas are 55% busy: as it should be"),
        (0.2, 2, 1, "at most 2 replicas are 10% busy for 180 s: 1 replica will do"),
        (0.2, 4, 3, "1 replica would do, 3 is one step"),
    ],
)
def test_it_says_why(load, wanted, count, words):
    made = decided(steady(load, wanted))
    assert made.replicas == count
    assert words in made.reason


def test_it_says_what_it_waits_for():
    assert "nothing has been measured" in decided([]).reason
    assert "whether it lasts" in decided(steady(0.9, 1, seconds=5)).reason
    assert "without a gap" in decided(steady(0.1, 2, seconds=60)).reason
    history = [*steady(0.9, 1)[:-1], replace(steady(0.9, 2)[-1], low=2.0, high=2.0)]
    assert "nothing more is changed for 30 s" in decided(history).reason


def test_limits_that_were_changed_hold_at_once():
    assert decided(steady(0.1, 8)).replicas == 6
    assert decided(steady(0.1, 1), Policy(fewest=2)).replicas == 2
    assert "not within" in decided(steady(0.1, 8)).reason


def test_a_gap_in_the_history_is_no_proof_of_quiet():
    history = steady(0.1, 3)
    assert decided(history).replicas == 2
    middle = len(history) // 2
    assert decided(history[: middle - 2] + history[middle + 2 :]).replicas == 3


# Workers


def backlog(running, waiting, oldest=0.0, each=4, wanted=2):
    sample = of_backlog(
        Backlog(running, waiting, oldest), at=NOW, wanted=wanted, each=each, policy=WORKERS
    )
    return steady(sample.low, wanted, WORKERS, pressing=sample.pressing)


WORKERS = Policy(target=1.0, most=10)


def test_workers_follow_what_there_is_to_do():
    assert decide(backlog(8, 0), WORKERS, NOW).replicas == 2
    assert decide(backlog(8, 8), WORKERS, NOW).replicas == 4
    assert decide(backlog(0, 0), WORKERS, NOW).replicas == 1


def test_runs_that_wait_too_long_ask_for_one_more_worker():
    made = decide(backlog(4, 1, oldest=31.0), WORKERS, NOW)
    assert made.replicas == 3
    assert "wait longer than 30 s" in made.reason
    assert decide(backlog(4, 1, oldest=29.0), WORKERS, NOW).replicas == 2
    # And while they wait none is removed.
    late = [replace(each, low=0.1, high=0.1) for each in backlog(0, 1, oldest=31.0, wanted=3)]
    late[-1] = replace(late[-1], pressing=False)
    assert "had to wait" in decide(late, WORKERS, NOW).reason


# Laws

policies = st.builds(
    Policy,
    fewest=st.integers(1, 3),
    most=st.integers(3, 12),
    target=st.floats(0.1, 1.0),
    band=st.floats(0.0, 0.5),
    interval=st.just(5.0),
    rise=st.floats(0.0, 30.0),
    fall=st.floats(30.0, 200.0),
    cooldown=st.floats(0.0, 120.0),
    up=st.integers(1, 4),
    down=st.integers(1, 3),
)
loads = st.one_of(st.none(), st.floats(0.0, 20.0))


@st.composite
def histories(draw, measured=loads):
    """Samples five seconds apart, some missing, with loads and numbers as they come."""
    ages = sorted(draw(st.sets(st.integers(0, 60), max_size=40)), reverse=True)
    made = []
    for age in ages:
        low = draw(measured)
        unsure = None if low is None else draw(st.one_of(st.none(), st.floats(0.0, 3.0)))
        made.append(
            Sample(
                at=NOW - age * 5000,
                wanted=draw(st.integers(0, 15)),
                low=low,
                high=None if low is None or unsure is None else low + unsure,
                pressing=draw(st.booleans()),
            )
        )
    return made


@settings(deadline=None)
@given(histories(), policies)
def test_never_outside_the_limits(history, policy):
    assert policy.fewest <= decide(history, policy, NOW).replicas <= policy.most


@settings(deadline=None)
@given(histories(), policies)
def test_never_more_than_one_step(history, policy):
    made = decide(history, policy, NOW).replicas
    if history and policy.fewest <= history[-1].wanted <= policy.most:
        assert -policy.down <= made - history[-1].wanted <= policy.up


@settings(deadline=None)
@given(histories(), policies)
def test_nothing_changes_while_it_cools_down(history, policy):
    moved = [b.at for a, b in pairwise(history) if a.wanted != b.wanted]
    if moved and NOW - moved[-1] < policy.cooldown * 1000:
        current = history[-1].wanted
        wanted = min(max(current, policy.fewest), policy.most)
        assert decide(history, policy, NOW).replicas == wanted


@settings(deadline=None)
@given(histories(), policies)
def test_what_is_not_measured_removes_nothing(history, policy):
    if history and history[-1].wanted <= policy.most:
        recent = [each for each in history if NOW - each.at <= policy.fall * 1000]
        if any(each.high is None for each in recent):
            made = decide(history, policy, NOW).replicas
            assert made >= min(history[-1].wanted, policy.most)


@settings(deadline=None)
@given(histories(), policies, st.lists(st.floats(0.0, 5.0), min_size=40, max_size=40))
def test_more_load_never_means_fewer_replicas(history, policy, more):
    heavier = [
        replace(
            each,
            low=None if each.low is None else each.low + extra,
            high=None if each.high is None else each.high + extra,
        )
        for each, extra in zip(history, more, strict=False)
    ]
    before, after = decide(history, policy, NOW), decide(heavier, policy, NOW)
    assert after.replicas >= before.replicas


# A replica is never more than full: from there on nobody could see that the load is too much.
visible = policies.filter(lambda policy: policy.target * (1 + policy.band) < 0.98)


@settings(deadline=None, max_examples=40)
@given(visible, st.floats(0.0, 15.0), st.integers(1, 12))
def test_under_a_constant_load_it_arrives_and_stays(policy, load, first):
    first = min(max(first, policy.fewest), policy.most)
    steps = policy.most + 2
    long = steps * (policy.cooldown + policy.fall + policy.warm_up + 60.0)
    looks = play(lambda _at: load, policy, 2 * long, first=first)
    late = [look for look in looks if look.at >= long]
    assert changes(late) == []
    # It went one way only, but for what could not be seen while all were full.
    ends = looks[-1].after
    if ends < policy.most:
        assert load <= ends * policy.target * (1 + policy.band) + 1e-6
    if ends > policy.fewest:
        assert load > (ends - 1) * policy.target * (1 - policy.band) - 1e-6


@settings(deadline=None)
@given(policies, st.integers(0, 30).flatmap(lambda n: st.lists(loads, min_size=n, max_size=n)))
def test_the_newest_unknown_load_changes_nothing(policy, before):
    wanted = policy.fewest
    history = [
        Sample(at=NOW - 5000 * (len(before) - n), wanted=wanted, low=load, high=load)
        for n, load in enumerate(before)
    ]
    history.append(Sample(at=NOW, wanted=wanted, low=None, high=None))
    assert decide(history, policy, NOW).replicas == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"fewest": 0},
        {"fewest": 3, "most": 2},
        {"target": 0.0},
        {"target": 1.5},
        {"band": 1.0},
        {"interval": 0.0},
        {"rise": -1.0},
        {"fall": 1.0},
        {"up": 0},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong):
    with pytest.raises(ValueError, match=r"."):
        Policy(**wrong)
