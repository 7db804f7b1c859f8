"""A limit nobody told us is found, kept near what is borne, and found anew when that changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essaim.plan.limits import FAR, FIRST, LATE, SOON, Limit, refused, succeeded
from plan.crowd import crowd


def test_it_grows_with_each_success_as_long_as_nothing_is_refused():  # R-B2
    limit = Limit(4)
    for _ in range(10):
        limit = succeeded(limit, limit.allowed, most=12)
    assert limit == Limit(12)


def test_a_limit_that_was_not_reached_proves_nothing():  # R-B2
    assert succeeded(Limit(4), 3, most=64) == Limit(4)


def test_it_is_halved_and_returns_to_what_was_borne():  # R-B2
    limit = refused(Limit(16), 16)
    assert (limit.allowed, limit.borne, limit.share) == (8, 14, FIRST)
    for _ in range(6):
        limit = succeeded(limit, limit.allowed, most=64)
    assert limit.allowed == 14
    assert succeeded(limit, 14, most=64).allowed == 14


def test_one_more_is_tried_after_a_while_and_later_after_each_time_in_vain():  # R-B2
    def rounds(limit: Limit) -> tuple[Limit, int]:
        count, before = 0, limit.allowed
        while limit.allowed == before:
            limit, count = succeeded(limit, limit.allowed, most=64), count + 1
        return limit, count

    limit, counts = Limit(5, borne=5, patience=SOON), []
    for _ in range(3):
        limit, count = rounds(limit)
        counts.append(count)
        limit = refused(limit, 6)
        assert (limit.allowed, limit.borne) == (5, 5)  # only the step up is taken back
    assert counts[0] == 5 * SOON
    assert counts == sorted(set(counts))
    assert counts[-1] <= 5 * LATE


def test_refusals_as_frequent_before_the_last_step_up_do_not_take_it_back():  # R-B2
    noisy = Limit(12, borne=12, streak=3, share=60)
    assert refused(noisy, 12).allowed == 11  # as many as one in a round: half their share
    assert refused(Limit(4, borne=4, streak=1, share=80), 4).allowed == 4  # perhaps chance
    quiet = Limit(12, borne=12, streak=3, share=10)
    assert (refused(quiet, 12).allowed, refused(quiet, 12).borne) == (11, 11)


def test_when_a_quarter_is_refused_it_is_halved():  # R-B2
    limit = Limit(16, borne=16, streak=40, share=FAR)
    assert refused(limit, 16).allowed == 8


def test_each_success_lets_refusals_be_forgotten():  # R-B2
    limit = refused(Limit(16), 16)
    for _ in range(120):
        limit = succeeded(limit, 1, most=64)
    assert (limit.allowed, limit.share) == (8, 0)


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=200),
)
def test_whatever_happens_it_stays_within_bounds(first, events):  # R-B2
    limit = Limit(first)
    for good, used in events:
        limit = succeeded(limit, used, most=40) if good else refused(limit, used)
        assert 1 <= limit.allowed <= 40
        assert limit.patience <= LATE
        assert limit.borne >= 0
        assert 0 <= limit.share <= 1000


@pytest.mark.parametrize("borne", [1, 3, 12, 30])
def test_it_uses_most_of_what_there_is(borne):  # R-B2
    """600 of them where so many at once are borne: a fixed number would need 600/borne rounds."""
    found = crowd(600, borne=borne)
    assert found.seconds <= (1.1 * 600 / borne + 3) * found.each
    assert found.refused <= 0.25 * 600


@pytest.mark.parametrize("first", [4, 15])
def test_refusals_by_chance_cost_little(first):  # R-B2
    """A lock that 5 % do not get, however few ask: four fifths of the throughput stay."""
    calm = crowd(600, first=first, most=15)
    for seed in range(20):
        found = crowd(600, first=first, most=15, chance=0.05, seed=seed)
        assert found.refused > 15
        assert calm.seconds / found.seconds >= 0.8, seed


def test_it_recovers_when_refusals_by_chance_end():  # R-B2
    """A time in which one of three is refused leaves a limit that is soon what it was."""
    found = crowd(600, most=15, chance=0.3, until=1000.0)
    calm = crowd(600, most=15)
    assert found.seconds <= calm.seconds + 1000.0 + 500.0
    assert found.limit.allowed >= 12


def test_it_follows_what_is_borne():  # R-B2
    """12 at once, and half as many from the 400th second on; then the other way round."""
    least = 400.0 + (600 - 12 * 400 / 24) / 6 * 24
    assert crowd(600, borne=12, then=(400.0, 6)).seconds <= 1.25 * least
    least = 400.0 + (600 - 6 * 400 / 24) / 24 * 24
    assert crowd(600, borne=6, then=(400.0, 24)).seconds <= 1.35 * least
