"""Benchmarks of many processes measure real ones, in the smallest size that shows it."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from essaim_lab.bench import (
    courier,
    failover,
    processes,
    replicas,
    rolling,
    services,
    workers,
)
from essaim_lab.bench.cluster import cluster
from essaim_lab.bench.load import Tally
from essaim_lab.bench.meter import CORES, Meter
from essaim_lab.bench.rows import CannotRunError
from patience import in_test_all


@pytest.fixture(scope="module")
def server():
    try:
        with services.postgresql_server() as found:
            yield found
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def broker():
    try:
        with services.redis_server() as found:
            yield found
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.fixture
def front():
    try:
        services.find("caddy", "caddy")
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def nobody_stays():
    """Every process that a test starts ends with it."""
    before = processes.children_of(os.getpid())
    yield
    assert processes.children_of(os.getpid()) <= before


@in_test_all
def test_heartbeats_and_rents_get_through_caddy(server, front, monkeypatch):
    """R-D2."""
    monkeypatch.setattr(replicas, "CLIENTS", 3)
    found = list(replicas.asked(server, 1, 12, 0.5, 0.1))
    assert [each.what for each in found][::2] == ["heartbeats", "grants"]
    assert [each.bad.total() for each in found] == [0, 0, 0]
    assert 0 < len(found[2].tally.granted) <= 12
    for each in found:
        assert {"API", "Caddy", "database", "this process"} == set(each.meter.cpu)
        assert each.meter.cpu["API"] > 0
        assert [row.unit for row in replicas.rows(each, 2, "any", 1.0)] == ["/s", "ms", ""]


@in_test_all
def test_a_process_is_restarted_while_requests_go_on(server, front, monkeypatch):
    """R-D7."""
    monkeypatch.setattr(rolling, "AFTER", 0.5)
    monkeypatch.setattr(rolling, "NOTICED", 0.5)
    monkeypatch.setattr(rolling, "NODES", 600)
    monkeypatch.setattr(rolling, "RATE", 20.0)
    url = server.new("rolling")
    found = rolling.rolled(url, 2, before=0.3, drain=1.2, restarts=1)
    assert found.restarts == 1
    assert found.doubles == 0
    assert len(found.during.times) > 20
    assert found.during.granted
    assert [row.unit for row in rolling.rows(found)] == ["", "", "/s", "s", "s", "s"]


@in_test_all
def test_runs_are_carried_by_a_worker_and_by_threads(server, broker, monkeypatch):
    monkeypatch.setattr(workers, "CONCURRENCY", 4)
    with cluster(server.new("workers"), broker.url) as plane:
        crew = plane.workers(1, 4)
        found = workers.told(plane, crew, 8, 0.05, broker=[broker.pid])
    first, second = workers.rows(found, 1, 0.05, found.rate)
    assert found.rate > 0
    assert (first.peer.value, second.unit) == (80, "")
    there = courier.spent(found)
    here = courier.threads(server.new("threads"), 8, 0.05)
    assert min(there.sender, there.carrier, here.carrier) > 0
    rows = courier.rows(here, there, 8, 0.05)
    assert [row.unit for row in rows] == ["ms", "ms", "ms"]


@in_test_all
def test_another_controller_ends_leases(server, broker):
    """R-D8."""
    late = failover.controllers(server.new("controllers"), broker.url, 6, [0.3])
    assert len(late) == 6
    assert min(late) >= 0


@in_test_all
def test_a_stand_by_takes_over_and_everything_ends(server):
    """R-D8."""
    (took,) = failover.autoscaler(server.new("autoscaler"), 1)
    assert took > 0


# -- what is made of figures ---------------------------------------------------------------------


def meter(busy: float) -> Meter:
    return Meter({}, seconds=1.0, cpu={"API": 0.5, "workers": 0.1}, everybody=busy)


def test_full_processors_promise_nothing():
    slow = workers.Carried(400, 10.0, meter(CORES / 2))
    assert next(workers.rows(slow, 4, 0.5, 16.0)).verdict == "MISSED"
    assert next(workers.rows(slow, 2, 0.5, 16.0)).verdict == "ok"
    full = workers.Carried(400, 10.0, meter(CORES))
    row = next(workers.rows(full, 4, 0.5, 16.0))
    assert row.verdict == "-"
    assert "full" in row.note


def test_replicas_are_compared_with_one():
    tally = Tally(seconds=1.0, granted=[{}] * 100, times=[0.1] * 100, failures=Counter(no=2))
    found = replicas.Found("grants", tally, meter(1.0), doubles=1)
    assert found.bad == {"no": 2, "doubles": 1}
    rate, each, _busy = replicas.rows(found, 2, "MariaDB", 50.0)
    assert rate.ratio == 2
    assert each.value == 5.0


def test_what_a_message_costs_is_a_difference():
    rows = list(courier.rows(courier.Cost(0, 4), courier.Cost(2, 16, 1), 400, 0.5))
    assert [row.value for row in rows] == [4, 18, 14]
    assert rows[-1].verdict == "ok"
    assert "1.00 ms" in rows[-1].note
