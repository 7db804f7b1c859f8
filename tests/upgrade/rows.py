"""Rows as the version of each schema wrote them: what a database had when it was of that version.

`ROWS[revision][table]` are rows of the columns that version knew, no others.  Never changed.
"""

from __future__ import annotations

from typing import Any

Rows = dict[str, list[dict[str, Any]]]

#: Milliseconds; some time in 2026.
THEN = 1_767_225_600_000
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k né@là 🐝"


def run(key: str, state: str, **more: Any) -> dict[str, Any]:
    usual = {
        "root": key, "parent": None, "workflow": "apply", "subject": "lab", "input": '{"n": 1}',
        "who": "ada", "undoing": False, "note": "", "error": "", "owner": "", "epoch": 1,
        "woken": False, "holds": None, "waits_slot": None, "slot_since": None,
        "created_at": THEN, "due_at": None, "finished_at": None,
    }  # fmt: skip
    return {"id": key, "state": state, **usual, **more}


def step(of: str, name: str, position: int, state: str, **more: Any) -> dict[str, Any]:
    usual = {"output": None, "attempts": 1, "error": "", "started_at": THEN, "finished_at": None}
    return {"run": of, "name": name, "position": position, "state": state, **usual, **more}


FIRST: Rows = {
    "run": [
        run("apply-1", "done", finished_at=THEN + 5000, note="tout est là 🐝"),
        run("apply-2", "failed", finished_at=THEN + 6000, error="pc-2: no answer\nwithin 30 s"),
        # An hour of 2100: nobody claims it while a test looks.
        run("apply-3", "ready", due_at=4_102_444_800_000, holds="stack:lab"),
        run("raise-4", "waiting", root="apply-3", parent="apply-3", waits_slot="start:local",
            slot_since=THEN),
    ],
    "step": [
        step("apply-1", "plan", 0, "done", output='{"machines": ["pc-1"]}', finished_at=THEN + 9),
        step("apply-2", "plan", 0, "failed", attempts=3, error="no answer"),
    ],
    "command_log": [
        {"id": 7, "run": "apply-1", "step": "configure", "machine": "lab/pc-1", "command": "true",
         "exit_code": 0, "output": "é" * 70_000, "started": 1767225600.25, "seconds": 0.125},
    ],
    "wait": [{"run": "apply-3", "on_run": "raise-4"}],
    "hold": [{"name": "stack:lab", "run": "apply-3", "owner": "", "until_at": THEN + 1,
              "since_at": THEN}],
    "slot": [{"name": "start:local"}],
    "slot_use": [{"run": "raise-4", "slot": "start:local"}],
    "stack": [{"name": "lab", "body": '{"name": "lab"}', "updated_at": THEN}],
    "machine": [{"name": "lab/pc-1", "stack": "lab", "body": '{"cores": 2}'}],
    "applied": [{"machine": "lab/pc-1", "role": "base", "digest": "d" * 64, "needs": "",
                 "boot": "b-1"}],
    "plan": [{"id": "p-1", "stack": "lab", "body": "{}", "created_at": THEN}],
}  # fmt: skip


def lease(key: str, state: str, **more: Any) -> dict[str, Any]:
    usual = {
        "person": "u-1", "project": "compilers", "request": None, "machines": 1, "cores": 2,
        "memory": 2048, "labels": '{"gpu": "no"}', "site": "", "seconds": 3600, "priority": 0,
        "public_key": KEY, "nodes": "[]", "run": "", "reason": "", "asked_at": THEN,
        "granted_at": None, "expires_at": None, "warned_at": None, "ended_at": None,
    }  # fmt: skip
    return {"id": key, "state": state, **usual, **more}


def node(key: str, state: str, **more: Any) -> dict[str, Any]:
    usual = {
        "name": f"pc-{key}", "site": "", "cores": 2, "memory": 2048, "labels": "{}",
        "address": "192.0.2.1", "port": 22, "host_key": KEY, "identity": f"digest of {key}",
        "tunnel": False, "tunnel_key": "", "agent": "0.1.0", "drained": False, "lease": None,
        "reason": "", "created_at": THEN,
    }  # fmt: skip
    return {"id": key, "state": state, **usual, **more}


SECOND: Rows = {
    "setting": [{"name": "token.key", "value": "00" * 32}],
    "person": [
        {"id": "u-1", "name": "ada", "password": "$argon2id$v=19$…", "role": "admin",
         "project": "compilers", "machines": 4, "hours": 200.5, "disabled": False,
         "created_at": THEN},
        {"id": "u-2", "name": "zoé", "password": "", "role": "member", "project": "",
         "machines": 0, "hours": 0.0, "disabled": True, "created_at": THEN + 1},
    ],
    "project": [{"name": "compilers", "machines": 40, "hours": 2000.0}],
    "session": [{"id": "s-1", "person": "u-1", "created_at": THEN, "expires_at": THEN + 9,
                 "revoked_at": None}],
    "refresh": [{"digest": "r" * 64, "session": "s-1", "used_at": None}],
    "enrolment": [{"digest": "e" * 64, "uses": 3, "site": "grenoble", "labels": '{"room": "12"}',
                   "who": "ada", "created_at": THEN, "expires_at": THEN + 9}],
    "node": [node("n-1", "held", lease="l-1"), node("n-2", "ready"), node("n-3", "quarantined",
             reason="an account would not go")],
    "pulse": [
        {"node": key, "credential": f"of {key}", "boot": "b-1", "seq": 2**40, "load": 0.5,
         "beat_at": THEN, "checked_at": THEN, "failures": 0}
        for key in ("n-1", "n-2", "n-3")
    ],
    "old_boot": [{"node": "n-1", "boot": "b-0", "ended_at": THEN}],
    "lease": [
        lease("l-1", "active", nodes='["n-1"]', run="rent-l-1", request="once",
              granted_at=THEN + 1, expires_at=THEN + 3_600_000),
        lease("l-2", "queued", machines=5),
        lease("l-3", "ended", ended_at=THEN + 7, reason="released by ada"),
    ],
}  # fmt: skip

THIRD: Rows = {
    "event": [
        {"id": 11, "place": 1, "at": THEN, "kind": "lease.active", "body": '{"word": "là"}',
         "lease": "l-1", "node": "n-1", "person": "u-1", "urgent": False, "once": "l-1 active"},
        {"id": 12, "place": None, "at": THEN, "kind": "node.lost", "body": "{}",
         "lease": "", "node": "n-3", "person": "", "urgent": True, "once": None},
    ],
    "visit": [
        {"id": "v-1", "lease": "l-1", "person": "u-1", "node": "n-1", "client": "192.0.2.9",
         "public_key": KEY, "opened_at": THEN, "closed_at": None, "bytes_in": 2**33,
         "bytes_out": 0, "refused": ""},
    ],
    "lease": [
        lease("l-4", "active", nodes='["n-4"]', home=False, hold=600, held_at=THEN + 5,
              granted_at=THEN, expires_at=THEN + 1),
    ],
    "node": [node("n-4", "held", lease="l-4")],
}  # fmt: skip

ROWS: dict[str, tuple[Rows, ...]] = {
    "0001": (FIRST,),
    "0002": (FIRST, SECOND),
    "0003": (FIRST, SECOND, THIRD),
}
