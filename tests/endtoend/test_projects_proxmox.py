"""The school's file on a simulated Proxmox VE whose containers are real sandbox machines."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from essaim.bootstrap import App
from essaim.config import projects as reading
from essaim.config.projects import compose_project
from essaim.model.machines import Form
from essaim.model.runs import RunState
from essaim.model.stacks import Site
from essaim.usecases import machines, projects, stacks
from essaim_lab.simulators.proxmox.backing import Backing
from essaim_lab.simulators.proxmox.settings import StorageSettings
from essaim_lab.simulators.proxmox.simulator import Simulator
from patience import in_test_all
from testcache import CACHE, base_image, images

EXAMPLE = Path(__file__).parents[2] / "examples" / "project"
ARCHIVE = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
STORAGE = StorageSettings(name="vol-ceph-1", copy_seconds=1.0, copies=4, linked_seconds=1.0)


@pytest.fixture
def simulator(tmp_path):
    rootfs = images().build(base_image(), lambda _text: None, Form.ROOTFS)
    sim = Simulator(nodes=3, storages=[STORAGE], speed=20.0)
    backing = Backing(sim, tmp_path / "machines", rootfs)
    sim.open(eager=True)
    yield sim
    sim.close()
    backing.close()


@in_test_all
@pytest.mark.timeout(600)
def test_simulated_proxmox_makes_the_schools_file_real_machines(simulator, tmp_path, monkeypatch):
    monkeypatch.setenv("PVE_TOKEN", simulator.plane_secret)
    site = Site(
        name="cri",
        driver="proxmox",
        settings={
            "url": [simulator.url],
            "token": simulator.plane_token,
            "secret": {"env": "PVE_TOKEN"},
            "ca": str(simulator.ca),
            "ids": "50000-59999",
            "storage": "vol-ceph-1",
            "bases": {"dirs-nfs:debian-11-standard": ARCHIVE},
            "host_keys": "first",
        },
    )
    monkeypatch.setattr(reading, "find_site", lambda *_: site)
    lab = tmp_path / "lab"
    shutil.copytree(EXAMPLE, lab)
    # The simulator answers for 10.1.2.3 at 127.1.2.3, and for 127.1.2.3 at just that.
    text = (lab / "profan.yaml").read_text().replace("192.168.79", "127.168.79")
    (lab / "profan.yaml").write_text(text)
    app = App({"ESSAIM_HOME": str(tmp_path / "home"), "ESSAIM_CACHE": str(CACHE)})
    try:
        project = compose_project(str(lab / "profan.yaml"))
        run = stacks.follow(app, stacks.apply(app, projects.plan(app, project)))
        assert run.state is RunState.DONE, run.error
        (seen,) = app.driver(site).observe("profan-prod")
        assert (seen.address, seen.detail["node"]) == ("127.168.79.170", "pve2")
        words = ["cat", "/etc/ssh/sshd_config.d/profan.conf"]
        ((_target, result),) = machines.run(app, "profan-prod", words, within=60)
        assert result.stdout.startswith("Port 22\n")
        assert projects.plan(app, project).plan.changes == ()
        stacks.give_way(app, "profan-prod")
        down = stacks.apply(app, projects.plan_down(app, "profan-prod"))
        assert stacks.follow(app, down).state is RunState.DONE
        assert app.driver(site).observe("profan-prod") == []
    finally:
        app.close()
