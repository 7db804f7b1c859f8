"""Workers in processes of their own, with real brokers that lose, double and delay messages."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from couriers.crew import PATIENCE
from essaim.couriers.celery import CARRY, CeleryCourier, celery_app, queue_of
from essaim.model.errors import SetupError
from essaim.model.runs import RunState
from patience import in_test_all

ONCE = {"one": 1, "two": 1}


def once(*keys: str) -> dict[tuple[str, str], int]:
    return {(key, step): times for key in keys for step, times in ONCE.items()}


def test_a_worker_carries_what_it_is_told_of_and_hands_back_when_it_ends(crew):
    # Before there is a worker: it looks for runs by itself and could be quicker than we are.
    crew.add("p", "f")
    crew.journal.abandon("p")
    crew.journal.abandon("f")
    worker = crew.worker("--concurrency", "4")
    keys = [f"r{number}" for number in range(20)]
    crew.add(*keys)
    crew.add("pausing", workflow="pauses")
    crew.add("family", workflow="family")
    crew.courier.wake()
    crew.finish(*keys, "pausing", "family")
    children = [f"family.{number}" for number in range(4)]
    assert crew.traces() == {
        **once(*keys, *children),
        ("pausing", "one"): 2,
        ("pausing", "two"): 1,
    }
    # Celery waits one second for answers: a worker that is slow to give them is asked again.
    crew.until(lambda: "pong" in ask(crew, "ping").stdout)
    crew.add("long", workflow="lingers")
    crew.courier.wake()
    crew.until(lambda: ("long", "one") in crew.traces())
    crew.until(lambda: "long" in ask(crew, "active").stdout)
    worker.send(signal.SIGTERM)
    # It has heard: it says so, and then reads nothing any more.
    crew.until(lambda: "shutdown" in worker.said and ask(crew, "ping").returncode)
    crew.add("later")
    crew.go()
    assert worker.wait() == 0, worker.said
    run = crew.journal.get("long")
    assert (run.state, run.owner, run.note) == (RunState.READY, "", "handed back")
    assert crew.journal.steps("long")[0].output == {"by": str(worker.pid)}
    assert crew.workers.alive() == []
    assert crew.states("later") == ["ready"]
    crew.worker()
    crew.finish("long", "later")
    assert crew.traces()["long", "one"] == 1


def ask(crew, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery", "-A", "essaim.couriers.celery", "inspect", what]
    return subprocess.run(
        command, env=crew.environ, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_lost_doubled_late_and_strange_messages_are_harmless(crew, broker):
    # Sent while a worker was thought alive, and all lost before one reads them.
    crew.workers.seen("pretender", [""], "nowhere", 1)
    keys = [f"r{number}" for number in range(10)]
    crew.add(*keys)
    crew.courier.dispatch()
    broker.forget()
    crew.worker()
    crew.finish(*keys)
    assert crew.traces() == once(*keys)
    for _ in range(3):  # late, since all of them are over; and of a run nobody knows
        for key in (*keys, "nobody"):
            crew.courier.app.send_task(CARRY, (key,), queue=queue_of(""))
    crew.add("many", workflow="short")
    for _ in range(10):
        crew.courier.app.send_task(CARRY, ("many",), queue=queue_of(""))
    crew.finish("many")
    crew.add("last")
    crew.courier.wake()
    crew.finish("last")
    assert crew.traces() == once(*keys, "many", "last")


@pytest.mark.parametrize(
    "broker", ["redis", pytest.param("rabbitmq", marks=in_test_all)], indirect=True
)
def test_a_broker_that_restarts_or_is_away_delays_and_loses_nothing(crew, broker, caplog):
    worker = crew.worker()
    crew.add("before")
    crew.courier.dispatch()  # and no `wake`: its thread could complain later, beside the other one
    crew.finish("before")
    broker.stop()
    try:
        crew.add("meanwhile")
        crew.courier.dispatch()  # never an error; a link that just broke may even take it
        caplog.clear()  # that one may have complained already
        strange = CeleryCourier(crew.journal, crew.broker_url)

        def complains() -> bool:
            strange._send("", ["meanwhile"])
            return "trying again" in caplog.text

        crew.until(complains)  # links are kept in a pool, and one that just broke is in it
        strange._send("", ["meanwhile", "another"])
        assert strange.stop()
        assert caplog.text.count("trying again") == 1
    finally:
        broker.start()
    crew.finish("meanwhile")
    crew.add("after")
    crew.courier.wake()
    crew.finish("after")
    assert worker.runs
    assert crew.traces() == once("before", "meanwhile", "after")


def test_a_cold_end_leaves_runs_to_their_leases(crew):
    worker = crew.worker(lease=2.0)
    crew.add("long", workflow="lingers")
    crew.courier.wake()
    crew.until(lambda: ("long", "one") in crew.traces())
    worker.send(signal.SIGQUIT)
    assert worker.wait() == 131
    crew.go()
    crew.worker()
    crew.finish("long")
    assert crew.traces() == {("long", "one"): 2, ("long", "two"): 1}


def test_only_brokers_that_are_known_are_taken():
    with pytest.raises(SetupError, match="sqs is not a broker"):
        celery_app("sqs://")
    with pytest.raises(SetupError, match="nothing is not a broker"):
        celery_app("")


def test_a_courier_that_never_woke_has_no_thread_and_ends(crew):
    courier = CeleryCourier(crew.journal, crew.broker_url)
    assert courier.wait(lambda: True)
    assert courier.stop()
