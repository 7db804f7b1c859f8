"""Who scales a service, and what they saw and decided (R-D7, R-D8)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.runs import NewRun
from essaim.plan.scaling import Backlog, Decision, Sample
from essaim.store.events import Events
from essaim.store.journal import SqlJournal
from essaim.store.scaling import Look, Scaling
from usecases.plane import together


@pytest.fixture
def scaling(database):
    return Scaling(database)


def look(at, wanted=1, decided=1, *, low=0.5, seen=1, trouble=""):
    sample = Sample(at=at, wanted=wanted, low=low, high=None, pressing=True)
    return Look(sample, Decision(decided, "because"), seen, trouble, {"a": (1.5, 100.0)})


def overdue(database):
    """Let the lease of whoever scales have run out."""
    database.write(lambda c: c.execute(sa.text("UPDATE scaler SET until_at = 1")))


def test_one_of_many_scales_until_its_lease_runs_out(database, scaling):
    names = [f"process-{number}" for number in range(6)]
    epochs = dict(zip(names, together(lambda n: scaling.take("api", n, 60), names), strict=True))
    (winner,) = [name for name, epoch in epochs.items() if epoch is not None]
    assert epochs[winner] == 1
    assert scaling.take("api", winner, 60) == 1
    assert scaling.take("worker", "another", 60) == 1  # another service is another matter
    overdue(database)
    assert scaling.take("api", winner, 60) == 1  # late, but nobody came
    overdue(database)
    assert scaling.take("api", "heir", 60) == 2
    assert scaling.take("api", winner, 60) is None
    (holder, _) = scaling.holders()
    assert (holder.service, holder.owner, holder.epoch) == ("api", "heir", 2)
    assert 0 < holder.left <= 60


def test_who_leaves_is_followed_at_once(scaling):
    scaling.take("api", "one", 60)
    scaling.leave("api", "two")
    assert scaling.take("api", "two", 60) is None
    scaling.leave("api", "one")
    assert scaling.take("api", "two", 60) == 2


def test_who_was_replaced_writes_nothing(database, scaling):
    before = scaling.take("api", "one", 60)
    overdue(database)
    after = scaling.take("api", "two", 60)
    assert not scaling.keep("api", before, look(1, 1, 3))
    assert not scaling.keep("unknown", before, look(1, 1, 3))
    assert scaling.last("api") is None
    assert Events(database).since(0) == []
    assert scaling.keep("api", after, look(1, 1, 3))


def test_looks_are_kept_and_changes_told(database, scaling):
    epoch, now = scaling.take("api", "one", 60), scaling.now()
    made = [
        look(now - 10_000_000, 1, 1),
        look(now - 1_000_000, 1, 3, low=None, seen=None),
        look(now - 10_000, 3, 3, trouble="it rains"),
        look(now, 3, 2),
    ]
    for each in made:
        assert scaling.keep("api", epoch, each)
    assert scaling.looks("api", 86_400) == made
    assert scaling.looks("api", 3600) == made[1:]
    assert scaling.last("api") == made[-1]
    assert scaling.changes("api") == [made[3], made[1]]
    assert scaling.changes("api", 1) == [made[3]]
    told = [(event.kind, event.text) for event in Events(database).since(0)]
    assert told == [
        ("scaling.up", "api: 1 → 3: because"),
        ("scaling.down", "api: 3 → 2: because"),
    ]
    assert scaling.prune(3600) == 1
    assert scaling.looks("api", 86_400) == made[1:]


def test_the_backlog_is_what_is_carried_and_what_waits(database, scaling):
    assert scaling.backlog() == Backlog(0, 0, 0.0)
    journal = SqlJournal(database)
    journal.add(
        [
            NewRun(id=f"r-{n}", workflow="w", subject="s", site=site)
            for n, site in enumerate(["", "", "", "lab"])
        ]
    )
    database.write(lambda c: c.execute(sa.text("UPDATE run SET due_at = due_at - 40000")))
    assert journal.claim("worker", 3600.0) is not None
    found = scaling.backlog()
    assert (found.running, found.waiting) == (1, 3)
    assert 40 <= found.oldest < 3600
    by_site = {site: scaling.backlog([site]) for site in ("", "lab", "other")}
    assert sum(each.waiting for each in by_site.values()) == 3
    assert by_site["other"] == Backlog(0, 0, 0.0)
