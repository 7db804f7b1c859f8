"""What goes wrong on purpose, and that it is repeatable."""

from __future__ import annotations

import pytest
import requests
from proxmoxer import ResourceException

from essaim_lab.simulators.proxmox import Simulator, VirtualClock
from lab.proxmox.client import Client


def outcome(act) -> tuple[int, str]:
    try:
        act()
    except ResourceException as error:
        return error.status_code, error.content
    return 200, ""


def test_a_share_of_requests_fails_the_same_ones_for_the_same_seed():
    def play(seed):
        with Simulator(nodes=1, seed=seed, clock=VirtualClock()) as sim:
            root = Client(sim)
            sim.fault("errors", share=0.3)
            return [outcome(root.api.version.get)[0] for _ in range(60)]

    first = play(1)
    assert first == play(1)
    assert first != play(2)
    assert 5 < sum(code >= 500 for code in first) < 30
    assert 200 in first


def test_some_of_what_failed_was_done_all_the_same(sim, root):
    sim.fault("errors", share=1.0, after=1.0)
    assert outcome(lambda: root.api.pools.post(poolid="made"))[0] >= 500
    assert "made" in sim.cluster.pools
    sim.fault("errors", share=1.0, after=0.0)
    assert outcome(lambda: root.api.pools.post(poolid="unmade"))[0] >= 500
    assert "unmade" not in sim.cluster.pools
    sim.heal()
    assert outcome(root.api.version.get)[0] == 200


def test_a_burst_ends(sim, root):
    sim.fault("errors", share=1.0, seconds=30.0)
    assert outcome(root.api.version.get)[0] >= 500
    sim.clock.advance(31.0)
    assert outcome(root.api.version.get)[0] == 200


def test_lock_time_outs(sim, root):
    sim.fault("locks", share=1.0)
    text = "can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout"
    assert root.done(root.clone(101, "qemu")) == text
    assert root.done(root.clone(101)) == (
        "clone failed: cfs-lock 'storage-vol-ceph-1' error: got lock request timeout"
    )
    assert 101 not in sim.cluster.guests
    sim.heal()
    root.made(101)


def test_a_node_is_lost_and_comes_back(sim, root):
    root.made(101)
    root.done(root.node().lxc(101).status.start.post())
    clone = root.clone(102, full=1)
    sim.clock.advance(1.0)
    sim.fault("node", name="pve1")
    assert outcome(root.node().lxc(101).status.current.get) == (595, "No route to host")
    assert outcome(lambda: root.status(clone)) == (595, "No route to host")
    seen = {each["id"]: each["status"] for each in root.api.cluster.resources.get()
            if each["type"] in ("node", "lxc")}  # fmt: skip
    assert (seen["node/pve1"], seen["lxc/101"], seen["node/pve2"]) == (
        "offline",
        "unknown",
        "online",
    )
    root.made(103, source=9001, node="pve2")
    sim.fault("node", name="pve1", lost=False)
    assert root.status(clone)["exitstatus"] == "unexpected status"
    assert root.node().lxc(101).status.current.get()["status"] == "stopped"
    assert root.done(root.node().lxc(101).status.start.post()) == "OK"
    root.made(104)


def test_a_lost_node_does_not_answer_at_its_own_address():
    with Simulator(nodes=2, clock=VirtualClock(), doors=True) as sim:
        headers = {"Authorization": f"PVEAPIToken={sim.token}={sim.secret}"}

        def ask(number):
            url = f"{sim.urls[number]}/api2/json/nodes"
            answer = requests.get(url, headers=headers, verify=str(sim.ca), timeout=60)
            return [node["status"] for node in answer.json()["data"]]

        assert [ask(0), ask(1)] == [["online", "online"]] * 2
        sim.fault("node", name="pve1")
        with pytest.raises(requests.exceptions.ConnectionError):
            ask(0)
        assert ask(1) == ["offline", "online"]
        sim.heal()
        assert ask(0) == ["online", "online"]


def test_without_a_majority_nothing_changes(sim, root):
    root.made(101)
    sim.fault("quorum")
    text = (500, "cluster not ready - no quorum?")
    assert outcome(lambda: root.clone(102)) == text
    assert outcome(root.node().lxc(101).status.start.post) == text
    assert outcome(lambda: root.node().lxc(101).config.put(memory=1024)) == text
    assert root.api.cluster.status.get()[0]["quorate"] == 0
    sim.fault("quorum", lost=False)
    root.made(102)


def test_a_task_dies_and_what_it_made_stays_locked(sim, root):
    sim.fault("deaths", count=1)
    upid = root.clone(101, "qemu", full=1)
    assert root.done(upid) == "unexpected status"
    assert not any("TASK" in line["t"] for line in root.node().tasks(upid).log.get())
    assert root.node().qemu(101).config.get()["lock"] == "clone"
    assert root.done(root.node().qemu(101).status.start.post()) == "VM is locked (clone)"
    assert root.done(root.node().qemu(101).delete()) == "VM is locked (clone)"
    sim.cluster.faults.unlock(101)
    assert root.done(root.node().qemu(101).delete()) == "OK"
    root.made(101, "qemu")


def test_a_container_whose_clone_died_locks_its_template_if_nobody_unlocks_it(sim, root):
    sim.fault("deaths", count=1, unlock=False)
    assert root.done(root.clone(101, full=1)) == "unexpected status"
    assert outcome(lambda: root.clone(102)) == (500, "CT is locked (disk)")
    sim.cluster.faults.unlock(9000)
    root.made(102)


def test_strangers_take_numbers(sim, root):
    sim.fault("foreign", ids="50000-50002,50005")
    taken = [vmid for vmid in sim.cluster.guests if vmid >= 50000]
    assert taken == [50000, 50001, 50002, 50005]
    sim.fault("foreign", count=2)
    assert root.api.cluster.nextid.get() == "102"
    sim.fault("snatch", share=1.0, count=1)
    assert outcome(lambda: root.clone(50003))[1].startswith("VM 50003 already exists on node 'pve")
    root.made(50004)


def test_faults_are_caused_over_https_with_the_labs_secret_only(sim, root):
    def ask(method, path, secret, **body):
        return requests.request(
            method,
            f"{sim.url}/lab/{path}",
            json=body or None,
            headers={"Authorization": f"Bearer {secret}"},
            verify=str(sim.ca),
            timeout=60,
        )

    for secret in ("", "wrong", sim.secret):
        assert ask("POST", "faults", secret, fault="quorum").status_code == 403
    assert sim.cluster.faults.quorate
    assert ask("POST", "faults", sim.admin_secret, fault="quorum").status_code == 200
    assert not sim.cluster.faults.quorate
    assert ask("DELETE", "faults", sim.admin_secret).status_code == 200
    assert sim.cluster.faults.quorate
    for body in ({"fault": "meteor"}, {"fault": "errors", "colour": 1}):
        assert ask("POST", "faults", sim.admin_secret, **body).status_code == 400
    root.api.version.get()
    counts = ask("GET", "counts", sim.admin_secret).json()["data"]
    assert counts["requests"]["GET /version"] == 1
    assert ask("GET", "nothing", sim.admin_secret).status_code == 501


def test_a_fault_that_does_not_exist_names_those_that_do(sim):
    with pytest.raises(ValueError, match="errors, foreign, full, locks"):
        sim.fault("meteor")
