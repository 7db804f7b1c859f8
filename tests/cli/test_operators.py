"""Looking after a fleet and its people from the command line (R-D1, R-D2)."""

from __future__ import annotations

import os
import subprocess

import pytest

from api.rig import wait_for
from essaim.model.fleet import NodeState
from essaim.usecases.credentials import digest


def test_nodes_are_listed_shown_drained_and_removed(here, admin):
    node = here.plane.ready("pc-1")
    assert "pc-1" in admin.does("nodes")
    assert admin.gets("nodes", "show", node)["name"] == "pc-1"
    assert node in admin.does("nodes", "show", "pc-1")
    admin.does("nodes", "drain", "pc-1")
    assert here.plane.fleet.get(node).drained
    assert "ready, drained" in admin.does("nodes", "list")
    admin.does("nodes", "undrain", "pc-1")
    assert not here.plane.fleet.get(node).drained
    assert "only lost or quarantined" in admin.does("nodes", "readmit", "pc-1", code=1)
    here.plane.fleet.move(node, NodeState.QUARANTINED, of=[NodeState.READY], reason="dirty")
    admin.does("nodes", "readmit", "pc-1")
    wait_for(lambda: here.plane.fleet.get(node).state == "ready")
    admin.does("nodes", "remove", "pc-1", "--yes")
    assert here.plane.fleet.get(node) is None


def test_a_name_that_is_nearly_right_is_guessed(here, admin):
    here.plane.ready("pc-12-03")
    assert "did you mean pc-12-03" in admin.does("nodes", "show", "pc-12-30", code=2)


def test_the_line_that_enrols_has_the_token_in_the_environment_and_not_in_an_argument(
    here, server, admin, tmp_path
):
    line = admin.does("nodes", "enrol", "--uses", "3", "--for", "1d", "--site", "room-12").strip()
    seen = tmp_path / "seen"
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\necho "$@" >>{seen}\nenv | grep ESSAIM_TOKEN >>{seen}.env\ntrue\n'
    )
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", line], check=True, cwd=tmp_path, env={"PATH": path})
    *fetched, joined = seen.read_text().splitlines()
    assert any(f"{server}/agent.py" in each for each in fetched)
    assert all(len(each) < 80 for each in line.splitlines())
    assert joined == f"-I agent.py join --server {server}"
    token = (tmp_path / "seen.env").read_text().strip().removeprefix("ESSAIM_TOKEN=")
    assert token in line
    assert token not in seen.read_text()
    machine = {
        "token": token, "name": "pc-9", "cores": 1, "memory": 512, "address": "192.0.2.9",
        "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7",
    }  # fmt: skip
    assert here.ask("POST", "/api/workers/register", json=machine).status_code == 201  # R-D1


def test_the_line_fetches_the_agent(here, server, admin, tmp_path):
    line = admin.gets("nodes", "enrol")["line"]
    fetch = line.split(" &&\n")[1]
    subprocess.run(["sh", "-c", fetch], check=True, cwd=tmp_path)
    assert (tmp_path / "agent.py").read_text().startswith("#!")


def test_enrolments_are_listed_and_revoked_and_machines_approved(here, admin):
    token = admin.gets("nodes", "enrol", "--approve", "--site", "room-12")["token"]
    (listed,) = [each for each in admin.gets("nodes", "enrolments") if each["site"] == "room-12"]
    assert digest(token).startswith(listed["id"])
    assert token not in admin.does("nodes", "enrolments")
    machine = {"token": token, "name": "pc-7", "cores": 1, "memory": 512, "address": "192.0.2.9"}
    machine["host_key"] = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7"
    assert here.ask("POST", "/api/workers/register", json=machine).status_code == 201
    assert "waits for approval" in admin.does("nodes")
    admin.does("nodes", "approve", "pc-7")
    assert "waits for approval" not in admin.does("nodes")
    revoked = admin.gets("nodes", "enrol", "--uses", "5")["token"]
    admin.does("nodes", "enrolments", "--revoke", digest(revoked)[:12])
    admin.does("nodes", "enrolments", "--revoke", "000000000000", code=2)
    machine |= {"token": revoked, "name": "pc-8"}
    assert here.ask("POST", "/api/workers/register", json=machine).status_code == 401


def test_people_are_listed_and_changed(here, admin, ada):
    assert "ada" in admin.does("users")
    words = "--role operator --project compilers --machines 8 --hours 500"
    changed = admin.gets("users", "set", "ada", *words.split())
    assert changed["role"] == "operator"
    assert (changed["project"], changed["machines"], changed["hours"]) == ("compilers", 8, 500)
    ada.does("leases", "--all")
    admin.does("users", "set", "ada", "--disable")
    assert "over" in ada.does("leases", code=3)
    admin.does("users", "set", "ada", "--enable")
    ada.does("login", "ada")


def test_projects_are_listed_and_changed(here, admin):
    admin.does("projects", "set", "compilers", "--machines", "40", "--hours", "2000")
    (project,) = admin.gets("projects")
    assert (project["name"], project["machines"], project["hours"]) == ("compilers", 40, 2000)
    assert "compilers" in admin.does("projects", "list")


def test_operators_see_whose_leases_they_are(here, admin, ada):
    here.plane.ready("pc-1")
    lease = ada.gets("rent")["id"]
    line = next(line for line in admin.does("leases", "--all").splitlines() if lease in line)
    assert line.endswith("ada")
    assert lease not in admin.does("leases")


@pytest.mark.parametrize(
    "words",
    [["users"], ["leases", "--all"], ["nodes", "enrol"], ["nodes", "drain", "pc-1"], ["projects"]],
)
def test_members_are_told_that_it_is_not_theirs_to_do(here, ada, words):
    here.plane.ready("pc-1")
    assert "only" in ada.does(*words, code=1)


def test_events_are_told_and_followed(here, ada, admin):
    here.plane.ready("pc-1")
    lease = ada.gets("rent")["id"]
    told = ada.does("events")
    assert "lease.granted" in told
    assert lease in told
    assert "node.ready" not in told
    assert "node.ready" in admin.does("events", "--all")
    following = ada.begins("events", "--follow", "--json")
    ada.does("release", lease)
    line = ""
    while "lease.ended" not in line:
        line = wait_for(following.stdout.readline)
    following.terminate()
    following.communicate(timeout=60)
