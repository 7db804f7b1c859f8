"""A site's workers are the only ones that touch it, and a run says when there are none."""

from __future__ import annotations

import json
import signal

import pytest

from patience import in_test_all


@pytest.mark.parametrize(
    "broker", ["redis", pytest.param("rabbitmq", marks=in_test_all)], indirect=True
)
def test_runs_wait_for_their_sites_worker_and_say_so(crew):
    other = crew.worker("--site", "b", "--site", "any")
    mine = crew.worker("--site", "a")
    crew.add("first", site="a")
    crew.add("second", site="b")
    crew.add("third")
    crew.add("family", workflow="family", site="a")
    crew.courier.wake()
    crew.finish("first", "second", "third", "family")
    assert crew.doers("first") == crew.doers("family.3") == {mine.pid}
    assert crew.doers("second") == crew.doers("third") == {other.pid}
    mine.send(signal.SIGTERM)
    assert mine.wait() == 0, mine.said
    keys = [f"w{number}" for number in range(5)]
    crew.add(*keys, site="a")
    crew.add("elsewhere", site="b")
    crew.courier.wake()
    crew.finish("elsewhere")
    assert set(crew.states(*keys)) == {"ready"}
    reason = "waits for a worker of site a: none is alive"
    shown = crew.types("runs", "show", "w0")
    assert reason in shown.stderr + shown.stdout, shown
    listed = json.loads(crew.types("runs", "--json").stdout)
    assert {each["note"] for each in listed if each["id"] in keys} == {reason}
    again = crew.worker("--site", "a")
    crew.finish(*keys)
    assert set().union(*map(crew.doers, keys)) == {again.pid}
    assert reason not in crew.types("runs", "show", "w0").stderr


def test_a_worker_without_a_broker_says_what_is_missing(crew):
    crew.environ["ESSAIM_BROKER"] = ""
    answer = crew.types("worker")
    assert answer.returncode == 3
    assert "ESSAIM_BROKER" in answer.stderr
