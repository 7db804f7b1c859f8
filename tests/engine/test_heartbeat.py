from __future__ import annotations

import threading

import pytest

from essaim.engine.heartbeat import Heartbeat
from essaim.model.runs import NewRun
from essaim.store.journal import SqlJournal

LEASE = 3600.0


@pytest.fixture
def journal(sqlite) -> SqlJournal:
    made = SqlJournal(sqlite)
    made.add([NewRun(id=key, workflow="w", subject="s") for key in "ab"])
    return made


def test_lost_runs_are_kept_no_longer(journal):
    beat = Heartbeat(journal, "me", LEASE)
    beat.beat()  # nothing to keep yet
    for _ in range(2):
        beat.hold(journal.claim("me", LEASE).run)
    assert beat.mine == {"a", "b"}
    journal.abandon("a")
    beat.beat()
    assert beat.mine == {"b"}
    beat.close()


def test_dropping_an_old_claim_keeps_the_new_one(journal):
    beat = Heartbeat(journal, "me", LEASE)
    old = journal.claim("me", 0.0).run
    beat.hold(old)
    journal.expire(["me"])
    new = old
    while new.id != old.id or new.epoch == old.epoch:
        new = journal.claim("me", LEASE).run
    beat.hold(new)
    beat.drop(old)
    assert beat.mine == {old.id}
    beat.drop(new)
    assert beat.mine == set()
    beat.close()


def test_a_missed_beat_is_not_the_last(journal, caplog):
    enough = threading.Event()
    beats = []

    class Away:
        def heartbeat(self, *_args):
            beats.append(1)
            if len(beats) == 1:
                raise OSError("away")
            enough.set()
            return set()

    beat = Heartbeat(Away(), "me", 0.03)
    beat.guard()
    assert enough.wait(60)
    beat.close()
    assert "cannot renew leases" in caplog.text
