"""The doctor of a Proxmox site connects, and names what is missing and the command that gives it.

The simulator stands for a cluster.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from drivers.proxmox_lab import TEMPLATE, ProxLab
from essaim.model.errors import SiteAwayError
from essaim.model.stacks import Image
from essaim_lab.simulators.proxmox import Simulator
from essaim_lab.simulators.proxmox.settings import NodeSettings, usual


@pytest.fixture
def sim():
    with Simulator(nodes=2, speed=40.0) as made:
        yield made


@pytest.fixture
def it(tmp_path, sim):
    lab = ProxLab(tmp_path, sim)
    yield lab
    lab.close()


def found(it, images=(TEMPLATE,), **settings):
    return [(each.name, each.ok, each.text) for each in it.new_driver(**settings).examine(images)]


def wrong(it, images=(TEMPLATE,), **settings):
    return {name: text for name, ok, text in found(it, images, **settings) if not ok}


def test_a_cluster_that_has_everything_is_in_order(it):
    checks = found(it)
    assert wrong(it) == {}
    assert [name for name, _ok, _text in checks] == [
        "server", "nodes", "templates", "rights", "storage", "bridge", "ids",
    ]  # fmt: skip


def test_where_nothing_listens_that_is_said(it):
    problems = wrong(it, url="https://127.0.0.1:9")
    assert "https://127.0.0.1:9: connection refused" in problems["server"]
    with pytest.raises(SiteAwayError, match=r"site pve cannot be reached: .* connection refused"):
        it.new_driver(url="https://127.0.0.1:9").check_reachable()
    it.new_driver().check_reachable()


def test_another_certificate_is_told_with_its_fingerprint(it):
    said = wrong(it, ca="", fingerprint="ab" * 32)["server"]
    assert "another fingerprint than the site's file says" in said
    assert "it shows the certificate " in said
    assert "HTTPSConnectionPool" not in said


def test_a_wrong_secret_is_the_accounts_fault(it, tmp_path):
    (tmp_path / "wrong").write_text("nothing")
    (tmp_path / "wrong").chmod(0o600)
    said = wrong(it, secret={"file": str(tmp_path / "wrong")})["server"]
    assert "refuses the account essaim@pve!plane" in said
    assert "not expired" in said


def test_rights_that_are_missing_are_named_with_the_command_that_gives_them(it, sim):
    """Each printed command, carried out, takes away exactly what was complained about."""
    access = sim.cluster.access
    for rule in [key for key in access.rules if "essaim@pve" in key[2]]:
        del access.rules[rule]
    # It may see what there is, so that it can be asked for by name.
    access.rules["/", "user", "essaim@pve"] = {"PVEAuditor": True}
    access.rules["/", "token", "essaim@pve!plane"] = {"PVEAuditor": True}
    access.changed()
    said = [text for name, ok, text in found(it) if name == "rights" and not ok]
    assert any("VM.Clone on /vms/9000" in each for each in said)
    assert any("Datastore.AllocateSpace on /storage/vol-ceph-1" in each for each in said)
    assert any("SDN.Use on /sdn/zones/localnetwork/vmbr0" in each for each in said)
    assert any("VM.Allocate" in each and "/pool/students" in each for each in said)
    for each in said:
        run_pveum(sim, each.partition("as root: ")[2])
    assert wrong(it) == {}


def run_pveum(sim, line: str) -> None:
    """Do what `pveum acl modify` does, for nothing here can run it."""
    program, noun, verb, path, *options = shlex.split(line)
    assert (program, noun, verb) == ("pveum", "acl", "modify")
    given = dict(zip(options[::2], options[1::2], strict=True))
    access = sim.cluster.access
    for option, kind in (("--users", "user"), ("--tokens", "token")):
        rules = access.rules.setdefault((path, kind, given[option]), {})
        for role in given["--roles"].split(","):
            assert role in access.roles
            rules[role] = True
    access.changed()


def test_what_a_site_names_and_does_not_have(it):
    images = [Image(name="x", builder="template", digest="d", settings={"template": "debian-gu"})]
    problems = wrong(it, images, storage="vol-cef", bridge="vmbr7", nodes=["pve1", "pve9"])
    assert "did you mean debian-gui?" in problems["templates"]
    assert "there are: " in problems["storage"]
    assert "vol-ceph-1" in problems["storage"]
    assert "pve1 has no vmbr7" in problems["bridge"]
    assert "pve9" in problems["nodes"]


def test_a_storage_that_may_not_hold_machines(it):
    assert "may not hold rootdir" in wrong(it, storage="dirs-nfs")["storage"]


def test_a_template_without_a_disk(it, sim):
    del sim.cluster.guests[9000].conf["rootfs"]
    assert "no disk to boot from" in wrong(it)["templates"]


def test_a_storage_that_is_full(tmp_path):
    with Simulator(nodes=1) as sim:
        it = ProxLab(tmp_path, sim)
        storage = sim.cluster.storages["vol-ceph-1"]
        object.__setattr__(storage.settings, "size", 17 << 30)  # templates take 16 of it
        assert "1.0 GiB free; at least 5 GiB are wanted" in wrong(it)["storage"]
        it.close()


def test_a_bridge_that_one_node_lacks(tmp_path):
    settings = usual(nodes=2)
    nodes = (settings.nodes[0], NodeSettings(name="pve2", bridges=("vmbr1",)))
    with Simulator(settings=replace(settings, nodes=nodes)) as sim:
        it = ProxLab(tmp_path, sim)
        assert wrong(it)["bridge"] == "pve2 has no vmbr0; it has vmbr1"
        it.close()


def test_a_node_that_is_away_is_told(it, sim):
    sim.fault("node", name="pve2")
    (nodes,) = [each for each in it.new_driver().doctor() if each.name == "nodes"]
    assert nodes.ok
    assert nodes.warn
    assert "pve2 does not answer" in nodes.text
