"""Tasks: their names, their states, their logs, and which of them are listed where."""

from __future__ import annotations

import re

import pytest
from proxmoxer import ResourceException
from proxmoxer.tools import Tasks


def test_a_upid_tells_what_it_is_about(root):
    upid = root.clone(101)
    form = r"UPID:pve1:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:vzclone:9000:root@pam!lab:"
    assert re.fullmatch(form, upid)
    assert Tasks.decode_upid(upid)["type"] == "vzclone"


def test_how_it_ended_is_said_only_when_it_has(root):
    upid = root.clone(101, full=1)
    found = root.status(upid)
    assert found["status"] == "running"
    assert "exitstatus" not in found
    assert root.done(upid) == "OK"
    found = root.status(upid)
    assert (found["status"], found["exitstatus"]) == ("stopped", "OK")
    assert (found["user"], found["tokenid"]) == ("root@pam", "lab")


def test_logs_end_with_how_it_ended(root):
    good = root.clone(101, full=1)
    bad = root.node().lxc(9000).status.start.post()
    root.done(good), root.done(bad)
    lines = [line["t"] for line in root.node().tasks(good).log.get()]
    # Which number it makes, no line says.
    assert lines[0] == "create full clone of mountpoint rootfs (vol-ceph-1:base-9000-disk-0)"
    assert lines[-1] == "TASK OK"
    (line,) = root.node().tasks(bad).log.get()
    assert line == {"n": 1, "t": "TASK ERROR: you can't start a CT if it's a template"}


def test_a_cluster_lists_what_runs_and_of_the_rest_the_newest(sim, root):
    for vmid in range(101, 131):
        root.made(vmid)
    running = [root.node().lxc(vmid).status.start.post() for vmid in range(101, 111)]
    listed = root.api.cluster.tasks.get()
    assert len(listed) == 25
    assert {each["upid"] for each in listed if "endtime" not in each} == set(running)
    over = [each for each in listed if "endtime" in each]
    assert {each["status"] for each in over} == {"OK"}
    # Where 25 run, nothing that is over is listed at all.
    running += [root.node().lxc(vmid).status.start.post() for vmid in range(111, 131)]
    listed = root.api.cluster.tasks.get()
    assert {each["upid"] for each in listed} == set(running)


def test_a_node_lists_what_is_over_and_on_demand_what_runs(sim, root):
    done = root.clone(101)
    root.done(done)
    sim.clock.advance(5.0)
    later = int(sim.clock.now())
    runs = root.clone(102, full=1)
    tasks = root.node().tasks
    assert [each["upid"] for each in tasks.get()] == [done]
    assert [each["upid"] for each in tasks.get(source="active")] == [runs]
    assert tasks.get(source="active")[0]["status"] == "RUNNING"
    assert [each["upid"] for each in tasks.get(source="all")] == [runs, done]
    assert [each["upid"] for each in tasks.get(source="all", since=later)] == [runs]
    assert tasks.get(source="all", limit=1, start=1)[0]["upid"] == done
    assert tasks.get(typefilter="vzstart") == []
    assert tasks.get(errors=1) == []


def test_an_interrupted_clone_leaves_nothing(sim, root):
    upid = root.clone(101, full=1)
    sim.clock.advance(2.0)
    root.node().tasks(upid).delete()
    assert root.done(upid) == "clone failed: received interrupt"
    assert 101 not in sim.cluster.guests
    root.made(102)


def test_tasks_that_are_none(root):
    for upid, text in (
        ("UPID:pve1:00000001:00000001:00000001:vzclone:9000:root@pam:", "no such task"),
        ("nonsense", "unable to parse worker upid"),
    ):
        with pytest.raises(ResourceException) as error:
            root.node().tasks(upid).status.get()
        assert error.value.errors == {"upid": text}


def test_a_stranger_does_not_look_into_others_tasks(root, person):
    upid = root.clone(101)
    bob = person("bob")
    with pytest.raises(ResourceException) as error:
        bob.status(upid)
    assert error.value.content == "Permission check failed (/nodes/pve1, Sys.Audit)"
    assert bob.api.cluster.tasks.get() == []
    assert bob.node().tasks.get(source="all") == []


def test_a_token_that_may_not_audit_sees_none_of_its_tasks_in_the_clusters_list(root, person):
    """As in reality: tasks are listed under the user's name, and a token is not its user."""
    root.made(101)
    alice = person("alice", ("/vms/101", "PVEVMUser"))
    upid = alice.node().lxc(101).status.start.post()
    assert alice.api.cluster.tasks.get() == []
    assert alice.status(upid)["status"] == "running"
    assert [each["upid"] for each in alice.node().tasks.get(source="all")] == [upid]
