"""The school's own file becomes real machines, names that BIND answers, and a play by Ansible."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from endtoend.school_names import BACK, FORWARD, dig, schools_names
from essaim.bootstrap import App
from essaim.config.projects import compose_project
from essaim.model.errors import InvalidError
from essaim.model.runs import RunState
from essaim.model.school import Host
from essaim.usecases import inventory, machines, projects, runs, stacks
from patience import in_test_all
from servers.nameservers import SECRET, look
from testcache import CACHE

EXAMPLE = Path(__file__).parents[2] / "examples" / "project"
HOST = "cloud.prod.pft.cri.local.isima.fr"
ADDRESS = "192.168.79.170"


@pytest.fixture(scope="module")
def bind():
    """A real BIND that has the school's zones, and one name that is somebody else's."""
    with schools_names() as names:
        yield names


class Plane:
    """A control plane whose site has that BIND, and a lab with the example in it."""

    def __init__(self, place: Path, names: dict[str, Any]) -> None:
        self.lab = place / "lab"
        shutil.copytree(EXAMPLE, self.lab)
        with (self.lab / "site" / "cri.yaml").open("a") as site:
            site.write(f"dns: {json.dumps(names)}\n")
        self.environ = {"ESSAIM_HOME": str(place / "home"), "ESSAIM_CACHE": str(CACHE)}
        self.app = App(self.environ)
        self.port = names["port"]

    def plan(self, **options):
        return projects.plan(self.app, compose_project(str(self.lab / "profan.yaml")), **options)

    def verbs(self, **options):
        changes = self.plan(**options).plan.changes
        return [(change.verb, change.machine or change.role, change.reason) for change in changes]

    def carry(self, stored):
        return stacks.follow(self.app, stacks.apply(self.app, stored))

    def apply(self, **options):
        stacks.give_way(self.app, "profan-prod")
        return self.carry(self.plan(**options))

    def read(self, path):
        ((_target, result),) = machines.run(self.app, "profan-prod", ["cat", path], within=60)
        return result.stdout if result.exit_code == 0 else None

    def write(self, name, old, new):
        file = self.lab / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def dig(self, *words):
        return dig(self.port, *words)

    def close(self):
        if "profan-prod" in projects.names(self.app):
            stacks.give_way(self.app, "profan-prod")
            self.carry(projects.plan_down(self.app, "profan-prod"))
        self.app.close()


@pytest.fixture
def plane(tmp_path, bind, monkeypatch):
    monkeypatch.setenv("SCHOOL_DNS_KEY", SECRET)
    plane = Plane(tmp_path, bind)
    yield plane
    plane.close()


@pytest.mark.timeout(600)
def test_the_schools_file_gives_machines_names_and_a_play(plane):
    assert [verb for verb, *_ in plane.verbs()] == ["open", "host", "play"]
    run = plane.apply()
    assert run.state is RunState.DONE, run.error
    assert plane.dig(HOST, "A") == ADDRESS
    assert plane.dig("-x", ADDRESS) == f"{HOST}."
    # What stands in the file is on the machine, and only what its tags ask for.
    expected = "Port 22\nPermitRootLogin yes\nAllowAgentForwarding yes\n"
    assert plane.read("/etc/ssh/sshd_config.d/profan.conf") == expected
    assert plane.read("/etc/profan.untagged") is None
    assert plane.read("/root/.ssh/authorized_keys").endswith(" limosadm\n")
    kept = [log.command for log in runs.logs(plane.app, machine="profan-prod/cloud", limit=99)]
    assert "playbook profan-transfert.yml: Set up the SSH server" in kept
    shown = projects.show(plane.app, "profan-prod")
    assert [(m.power, m.named, m.played) for m in shown.machines] == [("on", ADDRESS, True)]
    with pytest.raises(InvalidError, match="profan-prod is a project, not a stack of your own"):
        stacks.make_down_plan(plane.app, "profan-prod")
    # Nothing has changed: nothing is done.  Something has: that alone.
    assert plane.verbs() == []
    assert [verb for verb, *_ in plane.verbs(play=True)] == ["play"]
    plane.write("profan.yaml", "port: 22", "port: 2222")
    plane.write("profan.yaml", "'sudoer', 'pip', 'docker'", "'sudoer'")
    reason = "its extravars changed, its group, tags or executor changed"
    assert plane.verbs() == [("play", "profan-transfert.yml", reason)]
    assert plane.verbs(play=False) == []
    # Down: no machine, no name.
    assert plane.carry(projects.plan_down(plane.app, "profan-prod")).state is RunState.DONE
    assert plane.dig(HOST, "A") == plane.dig("-x", ADDRESS) == ""
    assert projects.names(plane.app) == []


def test_a_machine_that_fails_is_wholly_undone(plane):
    plane.write("profan.yaml", HOST, f"taken.{FORWARD}")
    run = plane.apply()
    assert run.state is RunState.STUCK
    assert f"taken.{FORWARD}" in run.error
    site = plane.plan().stack.site
    assert plane.app.driver(site).observe("profan-prod") == []
    assert plane.app.stacks.machines("profan-prod") == {}
    assert look(plane.port, f"taken.{FORWARD}", "A") == {"192.168.79.9"}
    assert look(plane.port, f"170.{BACK}", "PTR") == set()
    # With a name of its own it goes on from there.
    plane.write("profan.yaml", f"taken.{FORWARD}", f"free.{FORWARD}")
    assert plane.apply(play=False).state is RunState.DONE
    assert look(plane.port, f"free.{FORWARD}", "A") == {ADDRESS}
    # A name that was lost is seen and given again; another name replaces it.
    plane.app.names(site).unname(Host(name=f"free.{FORWARD}", address=ADDRESS))
    assert plane.verbs(play=False) == [("name", "profan-prod/free", "not in DNS")]
    assert plane.apply(play=False).state is RunState.DONE
    assert look(plane.port, f"free.{FORWARD}", "A") == {ADDRESS}
    plane.write("profan.yaml", f"free.{FORWARD}", f"free.lab.{FORWARD}")
    assert plane.verbs(play=False) == [("name", "profan-prod/free", "has another name")]
    assert plane.apply(play=False).state is RunState.DONE
    assert look(plane.port, f"free.{FORWARD}", "A") == set()
    assert look(plane.port, f"free.lab.{FORWARD}", "A") == {ADDRESS}


@in_test_all
@pytest.mark.timeout(600)
def test_a_failed_playbook_stops_and_goes_on(plane, monkeypatch):
    playbook = "workspaces/ansible/playbooks/profan-transfert.yml"
    plane.write(playbook, "dest: /etc/pip.conf", 'dest: "/etc/{{ token }}/pip.conf"')
    plane.write("profan.yaml", "  extravars:\n", "  extravars:\n    token: !secret pip\n")
    monkeypatch.setenv("ESSAIM_SECRET_PIP", "nowhere-s3cret")
    run = plane.apply()
    assert run.state is RunState.STUCK
    assert "task Say where Python packages come from" in run.error
    assert plane.dig(HOST, "A") == ADDRESS
    kept = runs.logs(plane.app, machine="profan-prod/cloud", limit=99)
    said = [log.output for log in kept if log.exit_code]
    assert said
    assert "••••" in said[0]
    everything = Path(plane.environ["ESSAIM_HOME"], "essaim.db").read_bytes()
    assert b"nowhere-s3cret" not in everything
    # Resumed, it plays again, and fails again; with another secret it does not.
    monkeypatch.setenv("ESSAIM_SECRET_PIP", "ssh")
    (child,) = [run for run in plane.app.journal.children(run.id) if run.workflow == "play"]
    plane.app.engine.resume(child.id)
    assert stacks.follow(plane.app, run.id).state is RunState.DONE
    assert plane.read("/etc/ssh/pip.conf") is not None
    assert plane.verbs() == []
    monkeypatch.setenv("ESSAIM_SECRET_PIP", "apt")
    assert plane.verbs() == [("play", "profan-transfert.yml", "a secret changed")]


@in_test_all
@pytest.mark.timeout(600)
def test_other_extravars_are_played_and_machines_left_alone(plane):
    assert plane.apply().state is RunState.DONE
    driver = plane.app.driver(plane.plan().stack.site)
    boot = driver.observe("profan-prod")[0].boot
    plane.write("profan.yaml", "port: 22", "port: 2222")
    assert plane.apply().state is RunState.DONE
    assert plane.read("/etc/ssh/sshd_config.d/profan.conf").startswith("Port 2222\n")
    assert driver.observe("profan-prod")[0].boot == boot
    # One more machine: it is made, and the playbook is for both.
    text = (plane.lab / "profan.yaml").read_text()
    head, _, tail = text.partition("cluster:")
    second = head.partition("ct:\n")[2].replace("cloud.", "web.").replace(".170", ".171")
    (plane.lab / "profan.yaml").write_text(f"{head}{second}cluster:{tail}")
    assert [verb for verb, *_ in plane.verbs()] == ["host", "play"]
    assert plane.apply().state is RunState.DONE
    assert [m.played for m in projects.show(plane.app, "profan-prod").machines] == [True, True]
    # And gone again: its name too, and the playbook is played for those who stay.
    (plane.lab / "profan.yaml").write_text(text)
    assert [verb for verb, *_ in plane.verbs()] == ["unhost", "play"]
    assert plane.apply().state is RunState.DONE
    assert plane.dig(HOST.replace("cloud", "web"), "A") == ""
    assert plane.dig(HOST, "A") == ADDRESS


@in_test_all
@pytest.mark.timeout(600)
def test_plain_ansible_reaches_the_machines_through_our_inventory(plane, tmp_path):
    assert plane.apply(play=False).state is RunState.DONE
    found = inventory.for_ansible(plane.app)
    assert found["profan_prod"] == {"hosts": [HOST]}
    script = tmp_path / "inventory"
    launcher = f'{sys.executable} -P -c "from essaim.cli import main; main()"'
    text = (EXAMPLE / "inventory").read_text().replace("exec essaim", f"exec {launcher}")
    script.write_text(text)
    script.chmod(0o755)
    env = {**os.environ, **plane.environ, "ANSIBLE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    env["ANSIBLE_SSH_ARGS"] = "-C"  # no kept connection: its socket would lie too deep for a name
    folder = Path(sys.executable).parent
    one = subprocess.run([script, "--host", HOST], env=env, capture_output=True, check=True)
    assert json.loads(one.stdout)["ansible_host"] == ADDRESS
    words = [folder / "ansible", "-i", script, "profan_prod", "-m", "command", "-a", "hostname"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cloud" in done.stdout


def test_two_projects_do_not_share_a_name(plane):
    assert plane.apply(play=False).state is RunState.DONE
    (plane.lab / "other.yaml").write_text(
        (plane.lab / "profan.yaml").read_text().replace("profan_prod", "other")
    )
    with pytest.raises(Exception, match=f"{HOST} is the name of profan-prod/cloud"):
        projects.plan(plane.app, compose_project(str(plane.lab / "other.yaml")))
    plane.write("profan.yaml", '"4096"', "8G")
    (line,) = projects.left_alone(plane.app, compose_project(str(plane.lab / "profan.yaml")).stack)
    assert line == "profan-prod/cloud: memory stays 4096, though the file says 8192"
