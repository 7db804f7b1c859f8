"""What people and agents do, over a real server (R-D1, R-D2)."""

from __future__ import annotations

import logging
import re

import pytest

from api.rig import GATEWAY, KEY, PASSWORD, is_problem, wait_for, world
from essaim.model.fleet import NodeState, Role
from essaim.usecases import people

ADA = {"name": "ada", "password": PASSWORD}
MACHINE = {
    "name": "pc-1",
    "cores": 4,
    "memory": 4096,
    "address": "192.0.2.7",
    "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7",
    "labels": {"gpu": "no"},
}


def logged_in(here, name: str = "ada") -> dict:
    who = {"name": name, "password": PASSWORD}
    assert here.ask("POST", "/api/signup", json=who).status_code == 201
    answer = here.ask("POST", "/api/login", json=who)
    assert answer.status_code == 200
    return answer.json()


def test_a_session_begins_goes_on_and_ends(here):
    tokens = logged_in(here)
    assert tokens["expires_in"] > 60
    assert here.ask("GET", "/api/leases", tokens["access"]).json() == []
    again = here.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]}).json()
    assert again["refresh"] != tokens["refresh"]
    assert here.ask("POST", "/api/logout", again["access"]).status_code == 204
    is_problem(here.ask("GET", "/api/leases", again["access"]), 401, "unauthorised")
    gone = here.ask("POST", "/api/refresh", json={"refresh": again["refresh"]})
    is_problem(gone, 401, "unauthorised")


def test_a_refresh_token_shown_twice_ends_the_session(here):
    tokens = logged_in(here)
    again = here.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]}).json()
    is_problem(
        here.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]}), 401, "unauthorised"
    )
    is_problem(here.ask("GET", "/api/leases", again["access"]), 401, "unauthorised")


def test_a_machine_joins_beats_and_is_looked_after(here):
    plane = here.plane
    admin = plane.token(plane.user("root", Role.ADMIN))
    token = here.ask("POST", "/api/enrolments", admin, json={"site": "room-1"}).json()["token"]
    joined = here.ask("POST", "/api/workers/register", json={"token": token, **MACHINE})
    assert joined.status_code == 201
    given = joined.json()
    assert given["gateway"] == {
        "host": GATEWAY.host,
        "port": GATEWAY.port,
        "host_key": GATEWAY.host_key,
    }
    assert given["interval"] > 0
    assert given["server_public_key"].startswith("ssh-ed25519 ")
    again = here.ask("POST", "/api/workers/register", json={"token": token, **MACHINE})
    is_problem(again, 401, "unauthorised")

    beat = {"boot_id": "b", "seq": 1, "load": 0.5, "accounts": ["l-abcd"]}
    first = here.ask("POST", "/api/workers/heartbeat", given["credential"], json=beat)
    assert first.json() == {"commands": [], "gateways": []}
    copy = here.ask("POST", "/api/workers/heartbeat", given["credential"], json=beat)
    is_problem(copy, 409, "replay")

    path = f"/api/nodes/{given['node_id']}"
    node = wait_for(
        lambda: (found := here.ask("GET", path, admin).json())["state"] == "ready" and found
    )
    assert (node["site"], node["load"], node["labels"]) == ("room-1", 0.5, {"gpu": "no"})
    assert here.ask("POST", f"{path}/drain", admin).json()["drained"] is True
    on = here.ask("POST", f"{path}/drain", admin, json={"on": False})
    assert on.json()["drained"] is False
    is_problem(here.ask("POST", f"{path}/readmit", admin), 409, "rejected")
    plane.fleet.move(given["node_id"], NodeState.LOST, of=[NodeState.READY])
    assert here.ask("POST", f"{path}/readmit", admin).json()["state"] in ("cleaning", "ready")


def test_machines_are_rented_extended_and_given_back(here):
    node = here.plane.ready("pc-1")
    token = logged_in(here)["access"]
    answer = here.rent(token, seconds=600)
    assert answer.status_code == 201
    lease = answer.json()
    assert answer.headers["location"] == f"/api/leases/{lease['id']}"
    assert lease["state"] == "active"
    assert lease["nodes"] == [node]
    assert [machine["name"] for machine in lease["machines"]] == ["pc-1"]
    assert lease["access"]["command"] == f"ssh -p 2222 {lease['account']}@gateway.example.org"

    run = here.ask("GET", lease["run_address"], token).json()
    assert run["run"]["workflow"] == "rent"
    assert [step["name"] for step in run["steps"]] == ["account"]
    assert "for the workflow alone" not in str(run)

    longer = here.ask("POST", "/api/extend", token, json={"lease": lease["id"], "seconds": 60})
    assert longer.json()["expires_at"] > lease["expires_at"]
    for _twice in range(2):
        ending = here.ask("POST", "/api/release", token, json={"lease": lease["id"]})
        assert ending.json()["state"] in ("ending", "ended")
    path = f"/api/leases/{lease['id']}"
    wait_for(lambda: here.ask("GET", path, token).json()["state"] == "ended")
    ended = here.ask("POST", "/api/extend", token, json={"lease": lease["id"], "seconds": 60})
    is_problem(ended, 409, "rejected")
    assert [each["id"] for each in here.ask("GET", "/api/leases", token).json()] == [lease["id"]]


def test_who_cannot_be_served_within_their_patience_is_told_where_to_look(here):
    here.plane.ready("pc-1")
    here.plane.gate.clear()
    token = logged_in(here)["access"]
    answer = here.rent(token, patience=0.2)
    assert answer.status_code == 202
    lease = answer.json()
    assert lease["state"] == "granted"
    assert lease["access"] is None
    assert here.ask("GET", lease["run_address"], token).status_code == 200
    here.plane.gate.set()
    path = f"/api/leases/{lease['id']}"
    wait_for(lambda: here.ask("GET", path, token).json()["access"])

    queued = here.rent(token, patience=0)
    assert queued.status_code == 202
    assert (queued.json()["state"], queued.json()["position"]) == ("queued", 1)


def test_the_same_key_is_the_same_lease(here):
    here.plane.ready("pc-1")
    here.plane.ready("pc-2")
    token = logged_in(here)["access"]
    first = here.rent(token, key="once").json()
    assert here.rent(token, key="once").json()["id"] == first["id"]
    assert len(here.ask("GET", "/api/leases", token).json()) == 1
    # Somebody else's key is another.
    other = logged_in(here, "eve")["access"]
    assert here.rent(other, key="once").json()["id"] != first["id"]
    here.ask("POST", "/api/release", token, json={"lease": first["id"]})
    path = f"/api/leases/{first['id']}"
    wait_for(lambda: here.ask("GET", path, token).json()["state"] == "ended")
    over = here.rent(token, key="once")
    assert (over.status_code, over.json()["state"]) == (200, "ended")


def test_a_quota_holds(here):
    token = logged_in(here)["access"]
    is_problem(here.rent(token, count=5, patience=0), 409, "quota")
    is_problem(here.rent(token, priority=5, patience=0), 403, "forbidden")


def test_administrators_change_people(here):
    plane = here.plane
    logged_in(here)
    admin = plane.token(plane.user("root", Role.ADMIN))
    changed = here.ask(
        "PATCH", "/api/users/ada", admin, json={"role": "operator", "hours": 7.5, "project": "p"}
    )
    assert changed.status_code == 200
    assert (changed.json()["role"], changed.json()["hours"]) == ("operator", 7.5)
    is_problem(here.ask("PATCH", "/api/users/nobody", admin, json={}), 404, "unknown")
    last = here.ask("PATCH", "/api/users/root", admin, json={"role": "member"})
    is_problem(last, 409, "rejected")
    names = [user["name"] for user in here.ask("GET", "/api/users", admin).json()]
    assert names == ["ada", "root"]
    assert "password" not in str(here.ask("GET", "/api/users", admin).json())


def test_the_agent_is_served_as_text(here):
    answer = here.client.get("/agent.py")
    assert answer.headers["content-type"].startswith("text/x-python")
    assert answer.text.startswith("#!/usr/bin/env python3")


def test_a_server_without_an_agent_says_so(new_database):
    with world(new_database("sqlite"), agent=None) as there:
        is_problem(there.client.get("/agent.py"), 404, "unknown")


def test_no_secret_is_logged(here, caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).addHandler(caplog.handler)
    try:
        tokens = logged_in(here)
        here.ask("POST", "/api/login", json={"name": "ada", "password": "wrong " + PASSWORD})
        here.ask("POST", "/api/login", json={"name": ["ada"], "password": PASSWORD})
        here.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]})
        here.ask("GET", "/api/leases", tokens["access"])
    finally:
        for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):
            logging.getLogger(name).removeHandler(caplog.handler)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "/api/login" in said
    for secret in (PASSWORD, tokens["access"], tokens["refresh"]):
        assert secret not in said


def test_hashing_does_not_hold_up_others(here, monkeypatch):
    """Whoever logs in while the hash takes for ever keeps nobody else waiting."""
    import threading

    begun, go_on = threading.Event(), threading.Event()

    def slow(*_arguments):
        begun.set()
        assert go_on.wait(60)
        return False

    monkeypatch.setattr(people, "right_password", slow)
    waiting = threading.Thread(target=lambda: here.ask("POST", "/api/login", json=ADA))
    waiting.start()
    try:
        assert begun.wait(60)
        assert here.client.get("/healthz").status_code == 200
        assert here.client.get("/readyz").status_code == 200
    finally:
        go_on.set()
        waiting.join(60)


@pytest.mark.parametrize("path", ["/healthz", "/api/leases", "/nowhere"])
def test_answers_are_hardened(here, path):
    headers = here.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer"
    assert "strict-transport-security" not in headers


def test_account_names_fit_what_nodes_accept(here):
    here.plane.ready("pc-1")
    lease = here.rent(logged_in(here)["access"]).json()
    assert re.fullmatch(r"l-[a-z0-9]{4,24}", lease["account"])
    assert KEY not in str(lease)
