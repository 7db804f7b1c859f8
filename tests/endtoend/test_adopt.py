"""`adopt` on a Proxmox site: a machine somebody else made becomes one of a stack, and goes back."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest

from endtoend.proxmox_api_only import api_only, write_stack
from essaim.remote.keyring import Keyring
from patience import in_test_all

pytestmark = pytest.mark.timeout(900)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPlDYy2kVpnGHsCBTYQwk3sOHh8nCOBAjx4bxoSWqGdl"


def done(cluster, upid: str) -> None:
    while (found := cluster.status(upid))["status"] != "stopped":
        time.sleep(0.05)
    assert found["exitstatus"] == "OK"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """An operator, and two machines of their pool that somebody else made: a VM, a container."""
    with api_only(tmp_path_factory.mktemp("adopt")) as (person, cluster):
        write_stack(person, "old", "vm", "10.219.3.0/24", ", address: 10.219.3.9")
        write_stack(person, "older", "box", "10.219.4.0/24", ", address: 10.219.4.9")
        done(cluster, cluster.clone(101, "qemu", name="legacy", pool="students"))
        theirs = cluster.node().qemu(101)
        key = Keyring(person.state / "keys").user_public_key()
        theirs.config.put(
            ipconfig0="ip=10.219.3.9/24", sshkeys=quote(f"{key}\n", safe=""), tags="theirs"
        )
        done(cluster, theirs.status.start.post())
        done(cluster, cluster.clone(102, "lxc", hostname="ancient", pool="students"))
        yield person, cluster


def test_a_machine_is_adopted_known_everywhere_and_given_back_by_down(site):
    person, cluster = site
    theirs = cluster.node().qemu(101)
    # Without --host-key: its guest agent shows the key.
    told = person.types("adopt", "pve", "101", "old/one-1", "--stack", "old")
    assert "old/one-1 is legacy from now on" in told
    assert "essaim-adopted" in theirs.config.get()["tags"]
    assert "old/one-1" in person.types("status", "old")
    person.types("up", "old", "--yes")
    assert person.types("run", "old", "--", "hostname").endswith("legacy\n")

    said = person.types("down", "old")  # no disk is lost, so nobody is asked
    assert "given back" in said
    assert theirs.config.get()["tags"] == "theirs"
    assert theirs.status.current.get()["status"] == "running"
    assert "no stack called old" in person.types("status", "old", code=2)


@in_test_all
def test_one_that_is_given_back_at_once_leaves_no_stack_behind(site):
    person, cluster = site
    person.types("adopt", "pve", "102", "older/one-1", "--stack", "older", "--host-key", KEY)
    assert "older/one-1" in person.types("status", "older")
    person.types("adopt", "--give-back", "pve", "102", "--stack", "older")
    assert "tags" not in cluster.node().lxc(102).config.get()
    assert "no stack called older" in person.types("down", "older", code=2)


def test_what_cannot_be_adopted_is_told_before_anything_is_changed(site):
    person, cluster = site
    words = ("adopt", "pve", "102", "older/one-1", "--stack", "older")
    said = " ".join(person.types(*words, code=1).split())
    assert "say the host key of ancient with --host-key" in said
    assert "site pve has no SSH to its nodes" in said
    assert "tags" not in cluster.node().lxc(102).config.get()
    assert "no stack called older" in person.types("status", "older", code=2)
    for which in ("9500", "debian-vm"):
        said = person.types("adopt", "pve", which, "old/one-1", "--stack", "old", code=2)
        said = " ".join(said.split())
        assert f"{which} is a template of site pve, not a machine" in said
        assert "template: debian-vm" in said
