"""A site file that names what its cluster does not have: told by the plan, before any change.

The simulator stands for the cluster.
"""

from __future__ import annotations

import contextlib

import pytest

from cli.person import Person
from essaim.bootstrap import App
from essaim_lab.simulators.proxmox import Simulator


@pytest.fixture
def sim():
    with Simulator(nodes=2, speed=100.0) as made:
        yield made


@pytest.fixture
def lab(tmp_path, sim):
    """Somebody with a stack and a roster on a cluster; `lab.site(…)` writes the site's file."""
    person = Person(tmp_path / "home")
    person.env |= {"ESSAIM_HOME": str(tmp_path / "state"), "ESSAIM_CACHE": str(tmp_path / "cache")}
    lab = tmp_path / "lab"
    for folder in ("site", "images"):
        (lab / folder).mkdir(parents=True)
    (lab / "essaim.yaml").touch()
    (lab / "stack.yaml").write_text(
        "defaults: [{site: pve}, _self_]\nname: far\nimage: gui\ntopology: {one: {count: 2}}\n"
    )
    (lab / "images" / "gui.yaml").write_text(
        "builder: template\ntemplate: debian-gui\nclone: full\n"
    )
    (lab / "promo.csv").write_text("login,name\nalice,Alice\nbob,Bob\n")
    (lab / "promo.yaml").write_text("site: pve\nimage: gui\nnetwork: {cidr: 10.77.0.0/24}\n")
    (lab / "token").write_text(sim.plane_secret)
    (lab / "token").chmod(0o600)

    def site(**changes: str) -> None:
        settings = {
            "driver": "proxmox",
            "url": sim.url,
            "token": sim.plane_token,
            "secret": "{file: token}",
            "ca": str(sim.ca),
            "ids": "50000-50999",
            "pool": "students",
            "storage": "vol-ceph-1",
            "host_keys": "first",
            **changes,
        }
        lines = [f"{key}: {value}\n" for key, value in settings.items()]
        (lab / "site" / "pve.yaml").write_text("".join(lines))

    person.lab, person.site = lab, site
    return person


def test_a_misspelt_name_is_told_by_the_plan(lab, sim):
    lab.site(storage="vol-cehp-1")
    students = ("students", "apply", str(lab.lab / "promo.csv"))
    for words in (("plan", str(lab.lab)), ("up", str(lab.lab)), (*students, "--plan"), students):
        done = lab.types(*words)
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        assert said.count("site pve: there is no storage vol-cehp-1") == 1, said
        assert "did you mean vol-ceph-1? storage: in the site file names it" in said
    assert sim.cluster.tasks == {}
    with contextlib.closing(App(lab.env)) as control:
        assert control.reservations.held("pve", "vmid") == {}
    lab.site()
    done = lab.types("plan", str(lab.lab))
    assert done.returncode == 0, done.stdout + done.stderr
