"""Machines that configure themselves: what `up` gives them, waits for, and writes down.

Sandbox machines have no cloud-init, so a small one of ours carries out the same user-data; the
real one does in `make test-libvirt-slurm`.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from essaim.bootstrap import App
from essaim.config.compose import compose
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.runs import RunState
from essaim.model.stacks import Site
from essaim.usecases import stacks
from essaim.workflows import settling
from essaim.workflows.tools import machine_target
from testcache import images

LAB = Path(__file__).parents[2]
SITE = ("site.driver=libvirt", "+site.uri=qemu:///session", "bootstrap=cloud-init")
HERE = Site(name="local", driver="libvirt")
SLOW = """
tail -n +2 /run/user-data | python3 -c '
import base64, json, os, pathlib, shutil, subprocess, sys
data = json.load(sys.stdin)
known = pathlib.Path("/var/lib/cloud/instance")
if known.exists():  # this is not its first boot
    data = {"write_files": [], "runcmd": []}
known.parent.mkdir(parents=True, exist_ok=True)
known.touch()
for file in data["write_files"]:
    path = pathlib.Path(file["path"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(file["content"]))
    path.chmod(int(file["permissions"], 8))
    shutil.chown(path, *file["owner"].split(":"))
errors = []
with open("/var/log/cloud-init-output.log", "ab") as log:
    scripts = sorted(pathlib.Path("/var/lib/cloud/scripts/per-boot").iterdir())
    for words in [[str(script)] for script in scripts] + data["runcmd"]:
        if subprocess.run(words, stdout=log, stderr=log).returncode:
            errors.append(f"{words} failed")
result = pathlib.Path("/run/cloud-init/result.json")
result.with_suffix(".new").write_text(json.dumps({"v1": {"errors": errors}}, indent=1))
result.with_suffix(".new").rename(result)
'
"""


class Computers(Sandbox):
    """Sandbox machines that boot as computers do: they answer, and are not done yet."""

    def __init__(self, app):
        super().__init__(app.home / "sandbox", images().ready)
        self.app, self.seeds, self.machines, self.boots = app, {}, {}, []

    def answers_within(self):
        return 60.0

    def create(self, machine, network, image, seed):
        super().create(machine, network, image, seed)
        self.seeds[machine.name], self.machines[machine.name] = seed, machine

    def start(self, name):
        super().start(name)
        target = machine_target(HERE, self, self.app.keyring, self.machines[name])
        self.app.remote.reach(target, within=60)
        data = b"#cloud-config\n" + json.dumps(dict(self.seeds[name].user_data)).encode()
        self.app.remote.run(target, "mkdir -p /run/cloud-init", within=60)
        put = ["sh", "-c", "umask 077; cat >/run/user-data"]
        self.app.remote.run(target, put, stdin=data, within=60)
        boot = threading.Thread(
            target=self.app.remote.run, args=(target, SLOW), kwargs={"within": 600}
        )
        boot.start()
        self.boots.append(boot)


@pytest.fixture
def app(tmp_path, monkeypatch):
    app = App({"ESSAIM_HOME": str(tmp_path / "home")})
    app.images = images()
    driver = Computers(app)
    monkeypatch.setattr(app, "driver", lambda _site: driver)
    yield app
    for boot in driver.boots:
        boot.join()
    for name in app.stacks.list_stacks():
        driver.close_network(name)
    app.close()


def up(app, stack, *overrides, again=False):
    composed = compose(str(stack), [*SITE, *overrides])
    stored = stacks.make_plan(app, composed, again=again)
    return stacks.follow(app, stacks.apply(app, stored)) if stored.plan.changes else None


def run(app, machine, script):
    target = machine_target(HERE, app.driver(HERE), app.keyring, machine)
    return app.remote.run(target, script, within=120)


def machines(app, name):
    stack, _lab = stacks.stored_stack(app, name)
    return {one.name.machine: one for one in stack.machines}


def commands(app, name):
    """What we ran there ourselves, for roles."""
    every = [app.logs.read(machine=str(one.name)) for one in machines(app, name).values()]
    return [log.command for logs in every for log in logs]


@pytest.mark.root
@pytest.mark.timeout(600)
def test_a_slurm_cluster_configures_itself(app):
    done = up(app, LAB / "examples/slurm", "nodes=2")
    assert done.state is RunState.DONE, done.error
    its = machines(app, "slurm")
    job = run(app, its["controller"], "srun -N2 hostname")
    assert sorted(job.stdout.split()) == ["nodes-1", "nodes-2"], job.output
    # Nothing was configured from here: we only looked, and know that nothing is left to do.
    assert all("/ready: " in command for command in commands(app, "slurm"))
    assert up(app, LAB / "examples/slurm", "nodes=2") is None
    seed = app.driver(None).seeds[its["nodes-1"].name]
    key = run(app, its["controller"], "cat /etc/munge/munge.key").stdout
    assert len(key) == 128
    assert key not in repr(seed)

    # What changes later is brought by us, and a machine no longer brings back what it knew.
    grown = up(app, LAB / "examples/slurm", "nodes=3")
    assert grown.state is RunState.DONE, grown.error
    its = machines(app, "slurm")
    job = run(app, its["controller"], "srun -N3 hostname")
    assert sorted(job.stdout.split()) == ["nodes-1", "nodes-2", "nodes-3"], job.output
    left = run(app, its["controller"], f"ls {settling.HOME}").stdout.split()
    assert [name for name in left if name[0].isdigit()] == ["02-base"]
    kept = run(app, its["nodes-3"], f"ls {settling.HOME}").stdout.split()
    assert [name for name in kept if name[0].isdigit()] == ["01-names", "02-base", "03-slurm-node"]


@pytest.mark.root
@pytest.mark.timeout(600)
def test_a_machine_that_fails_says_which_role_and_is_mended_from_here(app, tmp_path):
    lab = tmp_path / "lab"
    for name in ("first", "second"):
        (lab / "roles" / name).mkdir(parents=True)
    (lab / "roles/first/role.yaml").write_text(
        json.dumps({"run": [{"name": "mark", "do": "echo x >>/root/first", "unless": "false"}]})
    )
    role = {
        "vars": {"word": "gloomy-secret"},
        "files": [{"content": "{{ vars.word }}\n", "to": "/root/word", "mode": "0600"}],
        "run": [{"name": "start", "do": "cat /root/word; test -e /root/missing"}],
    }
    (lab / "roles/second/role.yaml").write_text(json.dumps(role))
    (lab / "stack.yaml").write_text(
        "defaults: [{size: tiny}, {site: local}, _self_]\nname: weak\nimage: base\n"
        "topology: {m: {roles: [first, second]}}\nnetwork: {cidr: 10.9.0.0/24}\n"
    )
    stuck = up(app, lab)
    assert stuck.state is RunState.STUCK
    what = "essaim: role second: start exited 1: see /var/lib/essaim/boot/log"
    assert f"weak/m: cloud-init failed: {what} (essaim ssh weak/m" in stuck.error
    assert "gloomy-secret" not in stuck.error
    one = machines(app, "weak")["m"]
    log = run(app, one, f"stat -c %a {settling.HOME}/log; cat {settling.HOME}/log").stdout
    assert log.startswith("600\n")
    assert "gloomy-secret" in log

    run(app, one, "touch /root/missing")
    stacks.give_way(app, "weak")
    mended = up(app, lab)
    assert mended.state is RunState.DONE, mended.error
    assert up(app, lab) is None


@pytest.mark.root
@pytest.mark.timeout(600)
def test_a_machine_that_is_started_again_applies_its_roles_again(app, tmp_path):
    lab = tmp_path / "lab"
    (lab / "roles/count").mkdir(parents=True)
    (lab / "roles/count/role.yaml").write_text(
        json.dumps({"run": [{"name": "count", "do": "echo x >>/root/boots", "unless": "false"}]})
    )
    (lab / "stack.yaml").write_text(
        "defaults: [{size: tiny}, {site: local}, _self_]\nname: again\nimage: base\n"
        "topology: {m: {roles: [count]}}\nnetwork: {cidr: 10.9.0.0/24}\n"
    )
    assert up(app, lab).state is RunState.DONE
    one = machines(app, "again")["m"]
    assert run(app, one, "cat /root/boots").stdout == "x\n"
    for boot in app.driver(None).boots:
        boot.join()  # it has said that it is done, and may still be about to hang up
    app.driver(None).stop(one.name)
    assert up(app, lab).state is RunState.DONE
    assert run(app, one, "cat /root/boots").stdout == "x\nx\n"  # each time by itself
    assert commands(app, "again") == []
    assert up(app, lab, again=True).state is RunState.DONE
    assert run(app, one, "cat /root/boots").stdout == "x\nx\nx\n"  # this time by us
    assert commands(app, "again") == ["count/count: echo x >>/root/boots"]
