"""What Prometheus is told."""

from __future__ import annotations

import subprocess

import pytest

from api.rig import KEY, wait_for, world
from essaim.model.fleet import Role, Wish
from essaim.usecases.leases import rent
from essaim_lab.computer import find


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
def everywhere(request, new_database):
    with world(new_database(request.param)) as made:
        yield made


@pytest.fixture
def operator(here):
    return here.plane.token(here.plane.user("root", Role.OPERATOR))


def told(here, token: str = "") -> dict[str, float]:
    """Every sample by its name and labels."""
    answer = here.ask("GET", "/metrics", token)
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_names_follow_the_conventions_of_prometheus(here, operator):
    here.plane.ready("pc-1")
    here.rent(operator)
    promtool = find("promtool", "prometheus")
    text = here.ask("GET", "/metrics", operator).text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_requests_are_measured_by_route_and_not_by_path(here, operator):
    for number in range(3):
        here.ask("GET", f"/api/nodes/n-{number}", operator)
        here.ask("GET", f"/nowhere/{number}")
    found = told(here, operator)
    one_node = 'method="GET",route="/api/nodes/{node_id}",status="404"'
    nowhere = 'method="GET",route="unknown",status="404"'
    assert found[f"essaim_http_request_duration_seconds_count{{{one_node}}}"] == 3
    assert found[f"essaim_http_request_duration_seconds_count{{{nowhere}}}"] == 3
    assert not [name for name in found if "nowhere" in name or "n-1" in name]


def test_streams_of_events_are_no_slow_requests(here, operator):
    answer = here.ask("GET", "/api/events", operator, params={"follow": False})
    assert answer.status_code == 200
    assert not [name for name in told(here, operator) if 'route="/api/events"' in name]


def test_heartbeats_are_counted_and_refused_ones_are_not(here, operator):
    _node, credential = here.plane.join("pc-1")
    for seq in range(1, 4):
        beat = {"boot_id": "boot", "seq": seq}
        assert here.ask("POST", "/api/workers/heartbeat", credential, json=beat).is_success
    here.ask("POST", "/api/workers/heartbeat", "wrong", json={"boot_id": "b", "seq": 1})
    assert told(here, operator)["essaim_heartbeats_total"] == 3


def test_the_queue_tells_its_length_and_age(everywhere):
    plane = everywhere.plane
    before = told(everywhere)
    assert (before["essaim_queue_length"], before["essaim_queue_age_seconds"]) == (0, 0)
    rent(plane, plane.user("ada"), Wish(), KEY)
    after = told(everywhere)
    assert after["essaim_queue_length"] == after['essaim_leases{state="queued"}'] == 1
    wait_for(lambda: told(everywhere)["essaim_queue_age_seconds"] > 0)


def test_runs_are_counted_by_state_and_overdue_ones_tell_their_delay(everywhere):
    plane = everywhere.plane
    plane.gate.clear()
    plane.ready("pc-1")
    token = plane.token(plane.user("ada"))
    run = everywhere.rent(token, patience=0).json()["run"]
    assert plane.courier.stop()  # nobody carries anything any more
    moving = ("ready", "running", "waiting")
    found = told(everywhere)
    assert sum(found[f'essaim_runs{{state="{state}"}}'] for state in moving) >= 1, run
    wait_for(lambda: told(everywhere)["essaim_run_delay_seconds"] > 0)


def test_gateway_sessions_and_bytes_are_counted_once(everywhere, monkeypatch):
    monkeypatch.setattr("essaim.usecases.watching.SETTLED", 0)
    visits = everywhere.plane.visits
    before = visits.opened(lease="l-1234", node="n-1", client="192.0.2.1", key="SHA256:x")
    visits.closed(before, 1, 1)
    wait_for(lambda: told(everywhere)["essaim_gateway_sessions_open"] == 0)  # counting begins here

    visit = visits.opened(lease="l-1234", node="n-1", client="192.0.2.1", key="SHA256:x")
    visits.opened(lease="l-1234", node="n-1", client="192.0.2.1", key="SHA256:y", refused="no")
    assert told(everywhere)["essaim_gateway_sessions_open"] == 1
    visits.closed(visit, 100, 2000)
    wait_for(lambda: told(everywhere)['essaim_gateway_bytes_total{direction="out"}'] == 2000)
    found = told(everywhere)
    assert found["essaim_gateway_sessions_open"] == 0
    assert found['essaim_gateway_sessions_total{result="served"}'] == 1
    assert found['essaim_gateway_sessions_total{result="refused"}'] == 1
    assert found['essaim_gateway_bytes_total{direction="in"}'] == 100


def test_migrations_are_counted_from_what_happened(here):
    told(here)
    events = here.plane.events
    events.tell("lease.moved", "l-1 moved", lease="l-1")
    events.tell("lease.ended", "l-1 ended", lease="l-1")
    found = told(here)
    assert found["essaim_lease_migrations_total"] == 1
    assert found['essaim_events_total{kind="lease.ended"}'] == 1
    assert told(here)["essaim_lease_migrations_total"] == 1


def test_connections_of_the_pool_are_counted(everywhere):
    found = told(everywhere)
    kinds = [name for name in found if name.startswith("essaim_database_connections")]
    assert len(kinds) == 2
    assert all(found[name] >= 0 for name in kinds)


def test_heartbeats_of_nodes_in_service_have_an_age(everywhere):
    plane = everywhere.plane
    assert told(everywhere)["essaim_heartbeat_age_seconds"] == 0
    _node, credential = plane.join("pc-1")
    beat = {"boot_id": "boot", "seq": 1}
    everywhere.ask("POST", "/api/workers/heartbeat", credential, json=beat)
    wait_for(lambda: told(everywhere)["essaim_heartbeat_age_seconds"] > 0)
