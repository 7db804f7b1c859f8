"""Killed, interrupted, doubled, failing on one node: nothing lost, nothing done twice (R-C2)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from endtoend.people import Person
from endtoend.traces import machine_pid

NODES = 20


def machines(person: Person, stack: str = "bare") -> dict[str, str]:
    found = json.loads(person.types("status", stack, "--json"))
    return {m["name"]: m["power"] for m in found[0]["machines"]}


def wait_for(condition, what: str, within: float = 120) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {within} s"
        time.sleep(0.05)


@pytest.mark.timeout(900)
def test_killed_ten_times_at_random_moments_twenty_machines_stand_in_the_end(root):
    luck = random.Random(20)
    root.types("image", "build", "base", within=600)
    started = time.monotonic()
    root.types("up", "examples/bare", f"nodes={NODES}")
    whole = time.monotonic() - started
    root.types("down", "bare", "--yes")
    for _ in range(10):
        process = root.begins("up", "examples/bare", f"nodes={NODES}")
        try:
            process.wait(luck.uniform(0.1, whole))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
    root.types("up", "examples/bare", f"nodes={NODES}")
    assert machines(root) == {f"bare/nodes-{k}": "on" for k in range(1, NODES + 1)}
    answers = root.types("run", "bare", "--", "hostname").split()
    assert sorted(answers[1::2]) == sorted(f"nodes-{k}" for k in range(1, NODES + 1))
    keepers = [
        pid
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if str(root.state).encode() in _command(pid) and b"unshare" in _command(pid)
    ]
    assert len(keepers) == 1
    assert "nothing to change" in root.types("up", "examples/bare", f"nodes={NODES}")


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_machine_that_was_killed_is_seen_and_started_again(root):
    root.types("up", "examples/bare", "nodes=3", within=600)
    root.types("run", "bare/nodes-2", "--", "touch", "/root/kept")
    os.kill(machine_pid(root, "bare", "nodes-2"), signal.SIGKILL)
    wait_for(lambda: machines(root)["bare/nodes-2"] == "off", "nodes-2 seen as off")
    up = root.types("up", "examples/bare", "nodes=3")
    assert "is off" in up
    assert machines(root)["bare/nodes-2"] == "on"
    root.types("run", "bare/nodes-2", "--", "test", "-e", "/root/kept")


def test_the_second_of_two_waits_for_the_first_or_leaves(root, tmp_path):
    root.types("image", "build", "base", within=600)
    lab = slow_lab(tmp_path, "until test -e /root/go; do sleep 0.2; done")
    first = root.begins("up", str(lab))
    second = None
    try:
        wait_for(lambda: (tmp_path / "home").exists() and _held(root), "the first began")
        refused = root.types("up", str(lab), "--no-wait", code=1)
        assert "slow" in refused
        assert "held" in refused
        second = root.begins("up", str(lab))
        said = next(line for line in second.stdout if "waiting for it" in line)
        wait_for(lambda: _done(root, "run", "slow/one", "--", "touch", "/root/go"), "it may go on")
        said += second.communicate(timeout=120)[0]
        assert "nothing to change" in said
        assert first.wait(120) == 0
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()


def _done(person: Person, *words: str) -> bool:
    with person.begins(*words) as process:
        process.communicate(timeout=120)
    return process.returncode == 0


def _held(person: Person) -> bool:
    runs = json.loads(person.types("runs", "--json"))
    return any(run["state"] in ("ready", "running") for run in runs)


def _carried(person: Person) -> bool:
    """Whether somebody has taken a run up that is not over."""
    runs = json.loads(person.types("runs", "--json"))
    return any(run["epoch"] and run["finished_at"] is None for run in runs)


def slow_lab(at: Path, do: str) -> Path:
    """A stack whose only role takes its time."""
    stack = at / "slow"
    role = stack / "roles" / "slow"
    role.mkdir(parents=True)
    (stack / "stack.yaml").write_text(
        "defaults: [{size: tiny}, {site: local}, _self_]\nname: slow\nimage: base\n"
        "topology: {one: {roles: [slow]}}\nnetwork: {cidr: 10.9.0.0/24}\n"
    )
    (role / "role.yaml").write_text(json.dumps({"run": [{"name": "nap", "do": do}]}))
    return stack


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(root, tmp_path):
    root.types("image", "build", "base", within=600)
    lab = slow_lab(tmp_path, "sleep 3")
    process = root.begins("up", str(lab))
    # Not before it carries its run: until then Ctrl-C ends it as it ends any program.
    wait_for(lambda: process.poll() is not None or _carried(root), "it began")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=240)
    assert process.returncode in (0, 130), said
    if process.returncode == 130:
        assert "nothing is lost" in said
    root.types("up", str(lab))
    assert "nothing to change" in root.types("up", str(lab))


@pytest.mark.timeout(600)
def test_a_role_that_fails_on_one_node_of_eight_lets_the_others_finish_and_resumes(root, tmp_path):
    stack = tmp_path / "eight"
    role = stack / "roles" / "picky"
    role.mkdir(parents=True)
    (stack / "stack.yaml").write_text(
        "defaults: [{size: tiny}, {site: local}, _self_]\nname: eight\nimage: base\n"
        "topology: {nodes: {count: 8, roles: [picky]}}\nnetwork: {cidr: 10.9.0.0/24}\n"
    )
    steps = [
        {"name": "first", "do": "echo once >> /root/first"},
        {"name": "second", "do": 'test "$(hostname)" != nodes-3 || test -e /root/mended'},
    ]
    (role / "role.yaml").write_text(json.dumps({"run": steps}))
    said = root.types("up", str(stack), code=4, within=600)
    assert "1 of 16 changes failed" in said
    assert "eight/nodes-3" in said
    found = json.loads(root.types("status", "eight", "--json"))[0]["machines"]
    assert [m["name"] for m in found if m["pending"]] == ["eight/nodes-3"]
    assert "second" in root.types("logs", "eight/nodes-3")

    root.types("run", "eight/nodes-3", "--", "touch", "/root/mended")
    again = root.types("up", str(stack))
    assert "eight/nodes-3" in again
    assert "eight/nodes-4" not in again
    assert root.types("run", "eight/nodes-3", "--", "cat", "/root/first") == "once\n"
    assert "nothing to change" in root.types("up", str(stack))


def test_a_stored_plan_is_refused_when_the_world_has_moved(root):
    root.types("image", "build", "base", within=600)
    plan = json.loads(root.types("plan", "examples/bare", "nodes=2", "--json"))
    root.types("up", "examples/bare", "nodes=1")
    refused = root.types("up", "--plan", plan["id"], code=1)
    assert "the world has moved" in refused
    assert set(machines(root)) == {"bare/nodes-1"}
    fresh = json.loads(root.types("plan", "examples/bare", "nodes=2", "--json"))
    root.types("up", "--plan", fresh["id"])
    assert set(machines(root)) == {"bare/nodes-1", "bare/nodes-2"}
