"""However many processes ask, no more pass than may, and what the dead used is found again."""

from __future__ import annotations

import sqlalchemy as sa

from essaim.plan.limits import Gate
from essaim.store.limits import Ask, Full, Limits, adaptive
from essaim.store.reservations import Reservations
from usecases.plane import together

STORAGE, NODE = Gate("pve clone slot on storage s", first=4), Gate("pve clone slot on node n", 9)


def ask(number: int, *gates: Gate) -> Ask:
    return Ask(holder=f"pve lab/m{number}", gates=gates or (STORAGE, NODE))


def test_no_more_pass_than_may_however_many_ask_at_once(database):  # R-B2
    its = Limits(database)
    answers = together(lambda number: its.take([ask(number)])[0], list(range(12)))
    assert sum(answer is True for answer in answers) == 4
    assert {a for a in answers if a is not True} == {Full(STORAGE.name, 4, 4)}
    assert len(its.uses("pve ")) == 4
    assert its.uses("other ") == []


def test_who_has_begun_does_not_begin_again_and_a_task_is_remembered(sqlite):  # R-B2
    its = Limits(sqlite)
    assert its.take([ask(1)]) == [True]
    its.bind("pve lab/m1", "UPID:a")
    assert Limits(sqlite).take([ask(1), ask(2)]) == [False, True]
    assert {use.holder: use.task for use in its.uses("pve ")} == {
        "pve lab/m1": "UPID:a",
        "pve lab/m2": "",
    }
    assert all(0 <= use.seconds < 120 for use in its.uses("pve "))
    its.free("pve lab/m1")
    assert its.take([ask(1)]) == [True]


def test_a_number_that_was_given_up_stops_who_rests_on_it(sqlite):  # R-B2
    its, reservations = Limits(sqlite), Reservations(sqlite)
    reservations.reserve("pve", "vmid", "lab/m1", [50000])
    wants = Ask(holder="h", gates=(STORAGE,), number=("pve", "vmid", "lab/m1", 50000))
    assert its.take([wants]) == [True]
    its.free("h")
    reservations.reserve("pve", "vmid", "lab/m1", [50001], anew=True)
    assert its.take([wants]) == [False]
    reservations.release("pve", "lab/m1")
    assert its.take([wants]) == [False]
    assert its.uses("h") == []


def test_success_at_the_limit_raises_it_and_a_burst_of_refusals_halves_it_once(database):  # R-B2
    its = Limits(database)
    assert its.take([ask(number) for number in range(4)]) == [True] * 4
    its.free("pve lab/m0", (STORAGE, NODE), refused=frozenset())
    assert its.limit(STORAGE) == 5
    assert its.limit(NODE) == 9  # four of nine prove nothing
    for number in (1, 2, 3):
        its.free(f"pve lab/m{number}", (STORAGE, NODE), refused=frozenset({STORAGE.name}))
    assert its.limit(STORAGE) == 1  # 3 were under way
    assert its.limit(NODE) == 9


def test_what_began_before_it_was_halved_says_nothing_new(sqlite):  # R-B2
    its = Limits(sqlite)
    wide = Gate("wide", first=16)
    assert its.take([ask(number, wide) for number in range(16)]) == [True] * 16
    # Database clocks count milliseconds: let some go by.
    later = sa.update(adaptive).values(halved_at=adaptive.c.halved_at)
    sqlite.write(lambda c: c.execute(later))
    its.free("pve lab/m0", (wide,), refused=frozenset({"wide"}))
    assert its.limit(wide) == 8
    sqlite.write(lambda c: c.execute(sa.text("UPDATE adaptive SET halved_at = halved_at + 5")))
    for number in range(1, 16):
        its.free(f"pve lab/m{number}", (wide,), refused=frozenset({"wide"}))
    assert its.limit(wide) == 8


def test_nothing_is_learnt_from_what_failed_otherwise(sqlite):  # R-B2
    its = Limits(sqlite)
    its.take([ask(number) for number in range(4)])
    its.free("pve lab/m0", (STORAGE, NODE))
    its.free("pve lab/nobody", (STORAGE, NODE), refused=frozenset({STORAGE.name}))
    assert its.limit(STORAGE) == 4
    assert its.limit(Gate("never seen", first=7)) == 7
