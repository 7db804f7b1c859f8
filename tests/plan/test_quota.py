"""Quotas of machines and of machine-hours."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from essaim.model.fleet import Lease, LeaseState, Quota, Wish
from essaim.plan.quota import WINDOW, Usage, longer, refusal, usage, used_hours
from plan.fleets import NOW, waiting, wishes

HOUR = 3_600_000


def lease(state: LeaseState, *, count: int = 1, began: int | None, ends: int, ended: bool) -> Lease:
    made = waiting("l-1", "a", Wish(count=count, seconds=3600))
    return replace(
        made,
        state=state,
        granted_at=began,
        expires_at=None if ended else ends,
        ended_at=ends if ended else None,
    )


def test_machines_are_counted_over_open_leases_those_that_wait_included():
    quota = Quota(machines=4, hours=1000)
    theirs = [waiting("l-1", "a", Wish(count=2)), waiting("l-2", "a", Wish())]
    used = usage(theirs, NOW)
    assert used.machines == 3
    assert refusal(Wish(count=1), quota, used) == ""
    assert refusal(Wish(count=2), quota, used) == "2 more would make 5 machines; 4 allowed"


def test_hours_are_those_spent_and_those_that_may_still_be_spent():
    spent = lease(LeaseState.ENDED, began=NOW - 5 * HOUR, ends=NOW - 3 * HOUR, ended=True)
    going = lease(LeaseState.ACTIVE, count=3, began=NOW - HOUR, ends=NOW + HOUR, ended=False)
    assert used_hours([spent, going, waiting("l-2", "a", Wish(seconds=7200))], NOW) == 2 + 6 + 2


def test_what_ended_before_it_was_granted_costs_nothing():
    never = lease(LeaseState.ENDED, began=None, ends=NOW, ended=True)
    assert usage([never], NOW) == Usage(0, 0.0)


def test_only_the_last_thirty_days_count():
    old = lease(
        LeaseState.ENDED, began=NOW - WINDOW - 9 * HOUR, ends=NOW - WINDOW - HOUR, ended=True
    )
    across = lease(
        LeaseState.ENDED, began=NOW - WINDOW - HOUR, ends=NOW - WINDOW + HOUR, ended=True
    )
    assert used_hours([old], NOW) == 0
    assert used_hours([across], NOW) == 1


def test_an_extension_is_measured_in_hours_alone():
    quota = Quota(machines=0, hours=10)
    assert longer(4, quota, Usage(5, 6.0)) == ""
    assert "10 allowed" in longer(4.5, quota, Usage(5, 6.0))


@given(st.lists(wishes(), max_size=6), wishes(), st.integers(0, 20), st.integers(0, 40))
def test_who_is_refused_is_refused_more_all_the_more(before, wish, machines, hours):
    quota = Quota(machines=machines, hours=hours)
    theirs = [waiting(f"l-{n}", "a", each) for n, each in enumerate(before)]
    if refusal(wish, quota, usage(theirs, NOW)):
        bigger = replace(wish, count=wish.count + 1)
        assert refusal(bigger, quota, usage(theirs, NOW))
        more = [*theirs, waiting("l-more", "a", wish)]
        assert refusal(wish, quota, usage(more, NOW))


@given(st.lists(wishes(), max_size=8), st.integers(0, 10))
def test_what_is_let_through_never_adds_up_to_more_than_the_quota(asked, machines):
    quota = Quota(machines=machines, hours=5)
    mine: list[Lease] = []
    for number, wish in enumerate(asked):
        if not refusal(wish, quota, usage(mine, NOW)):
            mine.append(waiting(f"l-{number}", "a", wish))
    assert usage(mine, NOW).machines <= machines
    assert usage(mine, NOW).hours <= 5
