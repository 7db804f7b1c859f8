"""A limit nobody told us is found, kept near what is borne, and found anew when that changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from essaim.plan.limits import LATE, SOON, Limit, refused, succeeded


def test_it_grows_with_each_success_as_long_as_nothing_is_refused():  # R-B2
    limit = Limit(4)
    for _ in range(10):
        limit = succeeded(limit, limit.allowed, most=12)
    assert limit == Limit(12)


def test_a_limit_that_was_not_reached_proves_nothing():  # R-B2
    assert succeeded(Limit(4), 3, most=64) == Limit(4)


def test_it_is_halved_and_returns_to_what_was_borne():  # R-B2
    limit = refused(Limit(16), 16)
    assert (limit.allowed, limit.borne, limit.patience) == (8, 14, 2 * SOON)
    for _ in range(6):
        limit = succeeded(limit, limit.allowed, most=64)
    assert limit.allowed == 14
    assert succeeded(limit, 14, most=64).allowed == 14


def test_one_more_is_tried_after_a_while_and_later_after_each_time_in_vain():  # R-B2
    limit = Limit(5, borne=5)

    def rounds(limit: Limit) -> tuple[Limit, int]:
        count, before = 0, limit.allowed
        while limit.allowed == before:
            limit, count = succeeded(limit, limit.allowed, most=64), count + 1
        return limit, count

    limit, first = rounds(limit)
    assert first == 5 * SOON
    limit = refused(limit, 6)
    while limit.allowed < limit.borne:
        limit = succeeded(limit, limit.allowed, most=64)
    _, second = rounds(limit)
    assert second == limit.borne * 2 * SOON


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


def test_it_uses_most_of_what_there_is():  # R-B2
    """600 of them where 12 at once are borne: a fixed 12 would need 50 rounds."""
    for capacity in (1, 3, 12, 30):
        limit, todo, rounds = Limit(4), 600, 0
        while todo > 0:
            rounds += 1
            used = min(limit.allowed, todo)
            done = min(used, capacity)
            if used > capacity:
                limit = refused(limit, used)
            for _ in range(done):
                limit = succeeded(limit, limit.allowed, most=64)  # who is done is followed
            todo -= done
        assert rounds <= 1.15 * 600 / capacity + 3, (capacity, rounds)
