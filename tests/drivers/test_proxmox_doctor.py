"""The doctor of a Proxmox site connects, and names what is missing and the command that gives it.

The simulator stands for a cluster.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from drivers.proxmox_lab import TEMPLATE, ProxLab
from drivers.pveum import Node
from essaim.drivers.proxmox import permissions
from essaim.model.errors import SiteAwayError
from essaim.model.stacks import Image
from essaim_lab.simulators.proxmox import Simulator
from essaim_lab.simulators.proxmox.certificates import make as make_certificates
from essaim_lab.simulators.proxmox.settings import NodeSettings, usual

ARCHIVE = Image(
    name="archive",
    builder="template",
    digest="d",
    settings={"ostemplate": "local:debian-12-standard"},
)


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
        "server", "quorum", "nodes", "clocks", "templates", "rights", "pool", "storage", "bridge",
        "ids",
    ]  # fmt: skip
    assert [each for each in it.new_driver().examine([TEMPLATE]) if each.warn] == []


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


def test_a_certificate_of_another_authority_is_told(it, tmp_path):
    (tmp_path / "other").mkdir()
    other, _context = make_certificates(tmp_path / "other", ["localhost"])
    said = wrong(it, ca=str(other))["server"]
    assert "is not who it should be: unable to get local issuer certificate" in said
    assert "ca: a copy of /etc/pve/pve-root-ca.pem" in said


def test_an_expired_token_is_told_with_the_lines_that_renew_it(it, sim, tmp_path):
    token = sim.cluster.access.users["essaim@pve"].tokens["plane"]
    token.expire = int(time.time()) - 60
    said = wrong(it)["server"]
    assert "refuses the account essaim@pve!plane: Authentication failed!" in said
    (line,) = [each for each in said.splitlines() if "if it is expired: " in each]
    Node(tmp_path / "bin", sim).type(line.partition(": ")[2])
    assert token.expire == 0
    assert wrong(it) == {}


def only(sim, needs, role="Need{}"):
    """Give the account these rights and no others, each path by a role of its own."""
    access = sim.cluster.access
    access.rules.clear()
    for number, need in enumerate(needs):
        access.roles[role.format(number)] = need.privileges
        rule = {role.format(number): need.propagate}
        access.rules[need.path, "user", "essaim@pve"] = dict(rule)
        # A token that has rights of its own, and all of its user's.
        access.rules[need.path, "token", "essaim@pve!plane"] = dict(rule)
    access.users["essaim@pve"].tokens["plane"].privsep = True
    access.changed()


def needed(it, version=8):
    site = permissions.Site(
        storages={"vol-ceph-1": ["rootdir"], "local": ["vztmpl"]},
        templates=[9000],
        cards=[("vmbr0", ""), ("vmbr0", "285")],
        version=version,
    )
    return permissions.needs(it.new_driver().settings, site)


def test_each_privilege_that_is_missing_is_named_with_the_line_that_gives_it(it, sim, tmp_path):
    """Each printed line, typed on a node, takes away exactly what was complained about."""
    node, images = Node(tmp_path / "bin", sim), [TEMPLATE, ARCHIVE]
    needs = needed(it)
    only(sim, needs)
    driver = it.new_driver(vlan=285)
    assert [each for each in driver.examine(images) if not each.ok or each.warn] == []
    named = []
    for number, need in enumerate(needs):
        for privilege in sorted(need.privileges):
            only(sim, needs)
            sim.cluster.access.roles[f"Need{number}"] = need.privileges - {privilege}
            sim.cluster.access.changed()
            checks = driver.examine(images)
            (said,) = [each.text for each in checks if each.name == "rights" and not each.ok]
            what, _, line = said.partition("\non a node, as root: ")
            assert what == f"essaim@pve!plane lacks {privilege} on {need.path}"
            node.type(line)
            assert [each for each in driver.examine(images) if not each.ok or each.warn] == []
            named.append(privilege)
    assert len(named) == sum(len(need.privileges) for need in needs)
    assert {"SDN.Use", "Sys.Audit", "Pool.Audit", "VM.Clone", "Datastore.Audit"} <= set(named)


def test_what_it_may_not_ask_is_said_and_not_called_ok(it, sim):
    only(sim, [need for need in needed(it) if need.path.startswith(("/pool", "/vms"))])
    checks = {each.name: each for each in it.new_driver().examine([TEMPLATE])}
    for name, why in (
        ("quorum", "Permission check failed (/, Sys.Audit)"),
        ("clocks", "Permission check failed (/nodes/pve1, Sys.Audit)"),
        ("storage", "the account lacks Datastore.AllocateSpace, Datastore.Audit on it"),
        ("bridge", "it does not exist, or the account lacks SDN.Use on it"),
    ):
        assert checks[name].warn
        assert f"was not looked at: {why}" in checks[name].text
    assert not checks["rights"].ok


@pytest.mark.parametrize(("version", "right"), [(8, "VM.Monitor"), (9, "VM.GuestAgent.FileRead")])
def test_the_right_to_read_host_keys_through_guest_agents(tmp_path, version, right):
    image = Image(name="vm", builder="template", digest="d", settings={"template": "debian-vm"})
    with Simulator(nodes=1, version=version, strict=True) as sim:
        it = ProxLab(tmp_path, sim)
        assert wrong(it, [image]) == {}
        access = sim.cluster.access
        access.roles["PVEVMAdmin"] -= {right}
        access.changed()
        assert f"lacks {right} on /pool/students" in wrong(it, [image])["rights"]
        assert wrong(it, [TEMPLATE]) == {}
        it.close()


def test_a_narrow_account_is_told_near_spellings_of_what_it_sees(tmp_path):
    with Simulator(nodes=1, strict=True) as sim:
        it = ProxLab(tmp_path, sim)
        driver = it.new_driver(pool="student", bridge="vmbr2")
        said = {each.name: each.text for each in driver.examine([]) if each.warn}
        assert "did you mean students?" in said["pool"]
        assert "did you mean vmbr0?" in said["bridge"] or "vmbr1" in said["bridge"]
        it.close()


def test_a_vnet_is_not_looked_for_among_the_bridges_of_nodes(tmp_path):
    settings = replace(usual(nodes=1), vnets={"lab1": "school"})
    with Simulator(settings=settings, strict=True) as sim:
        it = ProxLab(tmp_path, sim)
        driver = it.new_driver(bridge="lab1")
        assert "/sdn/zones/localnetwork/lab1" in wrong(it, bridge="lab1")["rights"]
        sim.cluster.grant("/sdn/zones/school/lab1", "essaim@pve", "PVESDNUser")
        checks = driver.examine([TEMPLATE])
        assert [each.text for each in checks if not each.ok] == []
        (said,) = [each.text for each in checks if each.warn]
        assert "it needs SDN.Use on /sdn/zones/ZONE/lab1" in said
        it.close()


def test_version_7_has_no_rights_on_bridges(tmp_path):
    with Simulator(nodes=1, version=7) as sim:
        it = ProxLab(tmp_path, sim)
        only(sim, needed(it, version=7))
        assert [each for each in it.new_driver().examine([TEMPLATE, ARCHIVE]) if not each.ok] == []
        it.close()


def test_a_template_of_which_nothing_is_seen_is_told_with_a_line_for_its_id(it, sim, tmp_path):
    only(sim, [need for need in needed(it) if need.path != "/vms/9000"])
    said = wrong(it)["templates"]
    assert "there is no template debian-gui" in said
    line = said.partition("on a node, with its id: ")[2]
    assert line.startswith(
        "pveum acl modify /vms/ID --users essaim@pve --tokens 'essaim@pve!plane'"
    )
    Node(tmp_path / "bin", sim).type(line.replace("/ID", "/9000"))
    assert wrong(it) == {}


def test_a_cluster_without_quorum(it, sim):
    sim.fault("quorum")
    assert "there is no quorum: no machine can be made or changed" in wrong(it)["quorum"]


def test_clocks_that_differ(tmp_path):
    settings = usual(nodes=2)
    nodes = (settings.nodes[0], replace(settings.nodes[1], clock_ahead=90.0))
    with Simulator(settings=replace(settings, nodes=nodes)) as sim:
        it = ProxLab(tmp_path, sim)
        (clocks,) = [each for each in it.new_driver().doctor() if each.name == "clocks"]
        assert clocks.warn
        assert "pve1 +0 s, pve2 +90 s" in clocks.text or "pve2 +89 s" in clocks.text
        assert "on pve2: chronyc tracking" in clocks.text
        it.close()


def test_what_a_site_names_and_does_not_have(it):
    images = [Image(name="x", builder="template", digest="d", settings={"template": "debian-gu"})]
    problems = wrong(it, images, storage="vol-cef", bridge="vmbr7", nodes=["pve1", "pve9"])
    assert "did you mean debian-gui?" in problems["templates"]
    assert "there are: " in problems["storage"]
    assert "vol-ceph-1" in problems["storage"]
    assert "pve1 has no vmbr7" in problems["bridge"]
    assert "pve9" in problems["nodes"]
    problems = wrong(it, pool="student")
    assert (
        "the site names student, which does not exist; did you mean students?" in problems["pool"]
    )
    assert "pveum pool add student" in problems["pool"]


def test_archives_and_disk_images_that_are_missing(it):
    for settings, near in (
        ({"ostemplate": "local:debian-13-standard"}, "debian-12-standard"),
        ({"ostemplate": "local:vztmpl/debian-12.tar.zst"}, "debian-12-standard_12.7-1_amd64"),
        ({"disk": "local:import/debian-13.qcow2"}, "debian-12.qcow2"),
        ({"iso": "local:iso/debian-12.iso"}, "debian-12.9.0-amd64-netinst.iso"),
    ):
        image = Image(name="x", builder="template", digest="d", settings=settings)
        assert near in wrong(it, [image])["templates"]


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
