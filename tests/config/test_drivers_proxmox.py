"""The settings of a Proxmox site are checked where they are written, and hold no secret."""

from __future__ import annotations

import pytest

SITE = """\
driver: proxmox
url: https://pve1.example.org:8006
token: essaim@pve!plane
secret: {env: PVE_TOKEN}
ca: pve-root-ca.pem
ids: 50000 - 59999
"""


@pytest.fixture
def pve(lab):
    """Gives the lab a site on a cluster, with these lines more, or others."""

    def write(*lines, base=SITE):
        lab.write("site/pve.yaml", base + "".join(f"{line}\n" for line in lines))
        return lab

    return write


def test_a_site_has_the_settings_that_were_given(pve):
    lab = pve("storage: vol-ceph-1", "vlan: 285", "nodes: [pve1]", "slots: {start: 8}")
    site = lab.compose("site=pve").stack.site
    assert (site.driver, site.slots) == ("proxmox", {"start": 8})
    assert site.settings == {
        "url": ["https://pve1.example.org:8006"],
        "token": "essaim@pve!plane",
        "secret": {"env": "PVE_TOKEN"},
        "ca": str(lab.root / "pve-root-ca.pem"),
        "ids": "50000-59999",
        "storage": "vol-ceph-1",
        "vlan": 285,
        "nodes": ["pve1"],
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("https://pve1", "http://pve1", "must begin with https://"),
        ("https://pve1", "https://me:secret@pve1", "nothing else"),
        ("essaim@pve!plane", "essaim@pve", "must be USER@REALM!NAME"),
        ("50000 - 59999", "50-60", "must be a range of VMIDs"),
        ("50000 - 59999", "50000-49999", "must be a range of VMIDs"),
        ("token: essaim@pve!plane\n", "", "says neither token nor user"),
        ("ca: pve-root-ca.pem\n", "", "neither ca nor fingerprint"),
        ("ca: pve-root-ca.pem\n", "fingerprint: 12:34\n", "must be the SHA-256"),
        ("{env: PVE_TOKEN}", "{}", "must say env or file"),
        ("ids:", "adress: dhcp\nids:", "unknown key"),
        ("ids:", "netmap: {10.1.0.0/16: 10.2.0.0/24}\nids:", "which has another size"),
        ("ids:", "netmap: {10.1.0.1/16: 10.2.0.0/16}\nids:", "must map networks"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(pve, old, new, said):
    problems = pve(base=SITE.replace(old, new)).problems("site=pve")
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("site/pve.yaml:") for problem in problems)


def test_a_secret_in_the_file_is_refused_and_not_shown(pve):
    (problem,) = pve(base=SITE.replace("{env: PVE_TOKEN}", "0a1b2c3d")).problems("site=pve")
    assert "site.secret holds the secret itself" in problem
    assert "0a1b2c3d" not in problem
