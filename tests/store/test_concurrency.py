"""Many workers on one journal: each run is carried by one of them at a time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from essaim.model.errors import HeldError
from essaim.model.journal import Move, Slot
from essaim.model.runs import NewRun, RunState
from essaim.store.database import db_now, open_database
from essaim.store.journal import SqlJournal
from essaim.store.schema import run

LEASE = 3600.0


def test_threads_never_claim_the_same_run(database):
    journal = SqlJournal(database)
    keys = [f"r{number}" for number in range(60)]
    journal.add([NewRun(id=key, workflow="w", subject="s") for key in keys])

    def work(owner: int) -> list[str]:
        mine = []
        while journal.next_due() is not None:
            claim = journal.claim(f"owner-{owner}", LEASE)
            if claim is not None:
                mine.append(claim.run.id)
                journal.write(claim.run, LEASE, Move(state=RunState.DONE))
        return mine

    with ThreadPoolExecutor(8) as threads:
        claimed = list(itertools.chain(*threads.map(work, range(8))))
    assert Counter(claimed) == Counter(keys)


WORKER = """
import sys
from essaim.model.journal import Move
from essaim.model.runs import RunState
from essaim.store.database import open_database
from essaim.store.journal import SqlJournal
database = open_database(sys.argv[1])
journal = SqlJournal(database)
print("ready", flush=True)
sys.stdin.readline()
while journal.next_due() is not None:
    claim = journal.claim(sys.argv[2], 3600.0)
    if claim is not None:
        journal.write(claim.run, 3600.0, Move(begins="step"))
        print(claim.run.id)
        journal.write(claim.run, 3600.0, Move(state=RunState.DONE))
"""


def test_processes_never_claim_the_same_run(url):
    database = open_database(url)
    keys = [f"r{number}" for number in range(60)]
    journal = SqlJournal(database)
    journal.add([NewRun(id=key, workflow="w", subject="s") for key in keys])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, f"owner-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for number in range(3)
    ]
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * 3
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    claimed = [line for worker in workers for line in worker.communicate()[0].split()]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert Counter(claimed) == Counter(keys)
    database.close()


def test_a_slot_is_never_overfull(database):
    journal = SqlJournal(database)
    slot = Slot("clone", 3)
    journal.add([NewRun(id=f"r{number}", workflow="w", subject="s") for number in range(30)])
    inside: set[str] = set()
    most = []
    lock = threading.Lock()

    def work(owner: int) -> None:
        while journal.next_due() is not None:
            claim = journal.claim(f"owner-{owner}", LEASE)
            if claim is None:
                assert not all_asleep(database), "a free slot woke nobody"
                continue
            if not journal.write(claim.run, LEASE, Move(takes=slot)):
                continue
            with lock:
                inside.add(claim.run.id)
                most.append(len(inside))
            with lock:
                inside.discard(claim.run.id)
            journal.write(claim.run, LEASE, Move(state=RunState.DONE, frees=True))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert len(most) == 30
    assert max(most) <= 3


def all_asleep(database) -> bool:
    """Whether runs wait for a slot that nobody is left to free."""
    wanted = sa.select(run.c.state, run.c.due_at).where(run.c.due_at.is_not(None))
    rows = database.read(lambda c: c.execute(wanted).all())
    # Asked later: a statement's own time may be before what it sees, so that one who was woken
    # meanwhile would seem to sleep.
    now = database.read(lambda c: c.execute(sa.select(db_now())).scalar())
    return bool(rows) and all(row.state == RunState.READY and row.due_at > now for row in rows)


def test_of_two_that_end_at_once_the_second_starts_the_third(database):
    journal = SqlJournal(database)
    for number in range(15):
        a, b, c = (f"{letter}{number}" for letter in "abc")
        journal.add(
            [
                NewRun(id=a, workflow="w", subject="s"),
                NewRun(id=b, workflow="w", subject="s"),
                NewRun(id=c, workflow="w", subject="s", waits_for=(a, b)),
            ]
        )
        runs = [journal.claim("me", LEASE).run for _ in range(2)]
        together(lambda run: journal.write(run, LEASE, Move(state=RunState.DONE)), runs)
        last = journal.claim("me", LEASE)
        assert last.run.id == c
        journal.write(last.run, LEASE, Move(state=RunState.DONE))


def test_only_one_of_many_gets_a_name(database):
    journal = SqlJournal(database)

    def ask(number: int) -> bool:
        try:
            journal.add([NewRun(id=f"r{number}", workflow="w", subject="s", holds="stack:x")])
        except HeldError:
            return False
        return True

    assert together(ask, range(6)).count(True) == 1


def test_the_same_children_may_be_added_at_once(database):
    journal = SqlJournal(database)
    runs = [NewRun(id=f"r{number}", workflow="w", subject="s") for number in range(20)]
    together(lambda _number: journal.add(runs), range(4))
    assert len(journal.list()) == 20


def together(act, values) -> list:
    """Do it for all values at once."""
    values = list(values)
    barrier = threading.Barrier(len(values))

    def one(value):
        barrier.wait(60)
        return act(value)

    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(one, values))
