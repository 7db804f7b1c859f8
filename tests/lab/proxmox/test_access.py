"""Who may do what, said in the words of Proxmox VE."""

from __future__ import annotations

import functools

import pytest
import requests
from proxmoxer import AuthenticationError, ProxmoxAPI, ResourceException

from lab.proxmox.client import Client


def get(sim, path, **more):
    return requests.get(f"{sim.url}/api2/json{path}", verify=str(sim.ca), timeout=60, **more)


def refused(act) -> tuple[int, str]:
    with pytest.raises(ResourceException) as error:
        act()
    return error.value.status_code, error.value.content


def test_without_a_ticket_nobody_is_let_in(sim):
    answer = get(sim, "/version")
    assert (answer.status_code, answer.reason) == (401, "No ticket")


def test_a_wrong_token_is_refused(sim):
    for token in (f"{sim.token}=wrong", "nobody@pve!x=1", "nonsense"):
        answer = get(sim, "/version", headers={"Authorization": f"PVEAPIToken={token}"})
        assert (answer.status_code, answer.reason) == (401, "Authentication failed!")


def test_a_password_gives_a_ticket_that_changes_things_only_with_its_csrf_token(sim):
    api = ProxmoxAPI(
        "127.0.0.1", port=sim.port, user="root@pam", password=sim.password, verify_ssl=str(sim.ca)
    )
    assert api.version.get()["version"].startswith("8.")
    api.pools.post(poolid="made-with-a-ticket")
    ticket, _ = api.get_tokens()
    answer = requests.post(
        f"{sim.url}/api2/json/pools",
        data={"poolid": "another"},
        cookies={"PVEAuthCookie": ticket},
        verify=str(sim.ca),
        timeout=60,
    )
    assert (answer.status_code, answer.reason) == (401, "Permission denied - invalid csrf token")
    assert set(sim.cluster.pools) == {"students", "made-with-a-ticket"}


def test_a_wrong_password_is_refused_late(sim):
    before = sim.clock.now()
    with pytest.raises(AuthenticationError):
        ProxmoxAPI(
            "127.0.0.1", port=sim.port, user="root@pam", password="no", verify_ssl=str(sim.ca)
        )
    assert sim.clock.now() - before == 3.0


def test_a_ticket_is_not_asked_for_with_a_token(root):
    code, text = refused(lambda: root.api.access.ticket.post(username="root@pam", password="x"))
    assert code in (401, 403)
    assert "authentication failure" in text or "not available with API token" in text


def test_a_stranger_sees_nothing_and_changes_nothing(sim, root, person):
    root.made(101)
    stranger = person("stranger")
    kinds = {entry["type"] for entry in stranger.api.cluster.resources.get()}
    assert kinds == {"node"}
    assert stranger.node().lxc.get() == []
    for act, where in (
        (stranger.node().lxc(101).config.get, "/vms/101, VM.Audit"),
        (stranger.node().lxc(101).status.start.post, "/vms/101, VM.PowerMgmt"),
        (lambda: stranger.node().lxc(101).delete(), "/vms/101, VM.Allocate"),
        (lambda: stranger.node().lxc(101).snapshot.post(snapname="s1"), "/vms/101, VM.Snapshot"),
        (lambda: stranger.clone(102), "/vms/9000, VM.Clone"),
        (lambda: stranger.api.pools.post(poolid="p1"), "/pool/p1, Pool.Allocate"),
    ):
        assert refused(act) == (403, f"Permission check failed ({where})")
    assert 102 not in sim.cluster.guests


def test_somebody_acts_on_their_own_machine_and_on_no_other(root, person):
    root.made(101)
    root.made(102)
    alice = person("alice", ("/vms/101", "PVEVMUser"))
    assert [entry["vmid"] for entry in alice.api.cluster.resources.get(type="vm")] == [101]
    assert alice.done(alice.node().lxc(101).status.start.post()) == "OK"
    assert refused(alice.node().lxc(102).status.start.post)[0] == 403
    # Their right to use it is none to change it.
    assert refused(lambda: alice.node().lxc(101).config.put(memory=1024))[0] == 403


def test_a_clone_needs_rights_to_source_target_storage_and_bridge(root, person):
    rights = [("/vms/9000", "PVETemplateUser")]
    bob = person("bob", *rights)
    assert refused(lambda: bob.clone(101)) == (403, "Permission check failed")
    root.api.access.acl.put(path="/vms/101", roles="PVEVMAdmin", users="bob@pve")
    assert refused(lambda: bob.clone(101)) == (
        403,
        "Permission check failed (/storage/vol-ceph-1, Datastore.AllocateSpace)",
    )
    storage = "/storage/vol-ceph-1"
    root.api.access.acl.put(path=storage, roles="PVEDatastoreUser", users="bob@pve")
    assert refused(lambda: bob.clone(101)) == (
        403,
        "Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)",
    )
    bridge = "/sdn/zones/localnetwork/vmbr0"
    root.api.access.acl.put(path=bridge, roles="PVESDNUser", users="bob@pve")
    bob.made(101)


def test_a_pools_rights_reach_its_machines(root, person):
    carol = person(
        "carol",
        ("/pool/students", "PVEVMAdmin"),
        ("/pool/students", "PVEPoolUser"),
        ("/vms/9000", "PVETemplateUser"),
        ("/storage/vol-ceph-1", "PVEDatastoreUser"),
        ("/sdn/zones/localnetwork", "PVESDNUser"),
    )
    assert refused(lambda: carol.clone(101))[0] == 403
    carol.made(101, pool="students")
    assert carol.node().lxc(101).config.get()["hostname"] == "debian-gui"
    (entry,) = [each for each in carol.api.cluster.resources.get() if each.get("vmid") == 101]
    assert entry["pool"] == "students"
    assert refused(lambda: carol.clone(102, pool="nowhere"))[1].startswith("Permission check")


def test_a_token_with_rights_of_its_own_has_no_more_than_its_user(root, person):
    root.made(101)
    dave = person("dave", ("/vms", "PVEVMAdmin"), privsep=1)
    assert dave.api.cluster.resources.get(type="vm") == []
    root.api.access.acl.put(path="/vms/101", roles="Administrator", tokens="dave@pve!own")
    assert dave.node().lxc(101).config.get()["memory"] == 512
    assert "Sys.Audit" not in dave.api.access.permissions.get(path="/vms/101")["/vms/101"]


def test_the_nearest_rule_counts(root, person):
    eve = person("eve", ("/vms", "PVEVMAdmin"), ("/vms/9001", "NoAccess"))
    seen = [entry["vmid"] for entry in eve.api.cluster.resources.get(type="vm")]
    assert seen == [9000, 9500, 9501]
    assert root.api.access.acl.get()[0].keys() == {"path", "type", "ugid", "roleid", "propagate"}


def test_nobody_gives_away_more_than_they_have(person):
    frank = person("frank", ("/vms/9000", "PVEVMAdmin"))
    frank.api.access.acl.put(path="/vms/9000", roles="PVEVMUser", users="frank@pve")
    give = lambda: frank.api.access.acl.put(  # noqa: E731 - tried once
        path="/vms/9000", roles="Administrator", users="frank@pve"
    )
    assert refused(give)[0] == 400


def test_the_planes_own_token_is_enough_for_its_work(sim):
    plane = Client(sim, sim.plane_token, sim.plane_secret)
    plane.made(101, pool="students", full=1, storage="vol-ceph-1")
    plane.node().lxc(101).config.put(memory=1024, tags="essaim", net0="name=eth0,bridge=vmbr0")
    assert plane.done(plane.node().lxc(101).status.start.post()) == "OK"
    assert any(task["type"] == "vzstart" for task in plane.api.cluster.tasks.get())
    assert refused(lambda: plane.api.access.users.post(userid="x@pve"))[0] == 403


def test_what_only_root_himself_may_set_is_refused_even_to_roots_token(sim, root):
    """As in reality: this is why a control plane needs SSH to the nodes for such things."""
    root.made(101)
    root.made(102, "qemu")
    put = root.node().lxc(101).config.put
    for said, text in (
        ({"mp0": "/srv/home,mp=/home"}, "mount point type bind is"),
        ({"hookscript": "local:snippets/x.sh"}, "changing the hookscript is"),
        ({"features": "nesting=1,fuse=1"}, "changing feature flags (except nesting) is"),
        ({"dev0": "/dev/kvm"}, "configuring device passthrough is"),
    ):
        whole = f"Permission check failed ({text} only allowed for root@pam)"
        assert refused(functools.partial(put, **said)) == (403, whole)
    put(features="nesting=1")
    vm = root.node().qemu(102).config.put
    assert refused(lambda: vm(args="-device x")) == (500, "only root can set 'args' config")
    assert refused(lambda: vm(cores=2, skiplock=1))[0] == 400
    api = ProxmoxAPI(
        "127.0.0.1", port=sim.port, user="root@pam", password=sim.password, verify_ssl=str(sim.ca)
    )
    api.nodes("pve1").lxc(101).config.put(mp0="/srv/home,mp=/home")
    assert root.node().lxc(101).config.get()["mp0"] == "/srv/home,mp=/home"
    with pytest.raises(ResourceException, match="unable to clone mountpoint 'mp0' \\(type bind\\)"):
        root.clone(103, source=101, full=1)
