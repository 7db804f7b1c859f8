"""Tries are counted by all processes together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from essaim.store.schema import attempt
from essaim.store.tries import Tries, Try

MOST = 5
HOUR = 3600.0


def one(name: str = "ada", kind: str = "login name") -> Try:
    return Try(kind=kind, key=name, gap=HOUR / MOST, within=HOUR)


def test_only_so_many_pass_whoever_counts_them(database):
    def guess(_number: int) -> bool:
        return Tries(database).take([one(), one("192.0.2.1", "login address")]) == 0

    with ThreadPoolExecutor(4) as threads:
        passed = list(threads.map(guess, range(3 * MOST)))
    assert sum(passed) == MOST
    assert 0 < Tries(database).take([one()]) <= HOUR / MOST
    assert Tries(database).take([one("grace")]) == 0


def test_one_that_was_no_guess_is_given_back(database):
    tries = Tries(database)
    for _ in range(MOST):
        assert tries.take([one()]) == 0
    tries.give_back(one())
    assert tries.take([one()]) == 0
    assert tries.take([one()]) > 0


def test_a_refused_one_counts_nowhere_and_names_are_not_kept(database):
    tries = Tries(database)
    for _ in range(MOST):
        tries.take([one()])
    assert tries.take([one(), one("grace")]) > 0
    for _ in range(MOST):
        assert tries.take([one("grace")]) == 0
    rows = database.read(lambda c: c.execute(sa.select(attempt)).all())
    assert not [row for row in rows if "ada" in row.id]


def test_those_who_have_made_up_are_forgotten(database):
    tries = Tries(database)
    fast = Try(kind="x", key="fast", gap=0.0, within=1.0)
    tries.take([fast, one()])
    # Database clocks count milliseconds: let one go by.
    earlier = sa.update(attempt).values(even_at=attempt.c.even_at - 1)
    database.write(lambda c: c.execute(earlier.where(attempt.c.id == fast.id)))
    tries.prune()
    rows = database.read(lambda c: c.execute(sa.select(attempt)).all())
    assert [row.id for row in rows] == [one().id]


def test_one_who_is_forgotten_meanwhile_is_counted_anew(database):
    """Rows that have made up go at any moment, also that of somebody who is being counted."""
    at_once = Try(kind="x", key="fast", gap=0.0, within=1.0)
    over = threading.Event()

    def forget() -> None:
        while not over.is_set():
            Tries(database).prune()

    with ThreadPoolExecutor(5) as threads:
        forgetting = threads.submit(forget)
        try:
            took = list(threads.map(lambda _: Tries(database).take([at_once]), range(400)))
        finally:
            over.set()
        forgetting.result()
    assert set(took) == {0}
