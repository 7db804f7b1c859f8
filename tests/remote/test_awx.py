"""Jobs of AWX, on a simulator of its REST API: no AWX can run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from essaim.config.plays import Play
from essaim.config.secrets import SecretRef
from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.model.stacks import Site
from essaim.remote.awx import MARK, Awx
from essaim_lab.simulators.awx import Simulator

PLAY = Play(
    group="profan_prod",
    playbook=Path("profan-transfert.yml"),
    tags=("sudoer", "docker"),
    extravars={"ssh": {"port": 22}},
    executor="awx",
)
HOSTS = [("cloud.example.org", "192.168.79.170"), ("web.example.org", "192.168.79.171")]


@pytest.fixture
def awx():
    with Simulator() as simulator:
        yield simulator


@pytest.fixture
def client(awx, tmp_path, monkeypatch):
    monkeypatch.setenv("AWX_TOKEN", awx.token)

    def make(**more):
        its = {"url": awx.url, "token": {"env": "AWX_TOKEN"}, "ca": str(awx.ca), **more}
        made = Awx(Site(name="cri", driver="sandbox", settings={"awx": its}), tmp_path)
        clients.append(made)
        return made

    clients = []
    yield make
    for each in clients:
        each.__exit__()


def test_simulated_machines_are_told_and_those_gone_are_removed(awx, client):
    awx.inventory("essaim")
    its = client(inventory="essaim")
    its.tell("profan_prod", HOSTS)
    assert awx.members("profan_prod") == dict(HOSTS)
    its.tell("profan_prod", [("cloud.example.org", "192.168.79.180")])
    assert awx.members("profan_prod") == {"cloud.example.org": "192.168.79.180"}
    assert [each["name"] for each in awx.hosts.values()] == ["cloud.example.org"]


def test_simulated_hosts_of_others_are_left_alone(awx, client):
    inventory = awx.inventory("essaim")
    its = client(inventory="essaim")
    its.tell("profan_prod", HOSTS[:1])
    (group,) = awx.groups.values()
    for number, name in ((91, "web.example.org"), (92, "foreign.example.org")):
        awx.hosts[number] = {
            "id": number,
            "inventory": inventory,
            "name": name,
            "variables": '{"ansible_host": "10.0.0.1"}',
            "description": "",
        }
    group["hosts"].append(92)
    its.tell("profan_prod", HOSTS[1:])
    assert awx.members("profan_prod") == {
        "foreign.example.org": "10.0.0.1",
        "web.example.org": "10.0.0.1",
    }


def test_simulated_a_job_is_launched_with_all_it_needs_and_followed(awx, client, logs):
    inventory = awx.inventory("essaim")
    awx.template("profan-transfert")
    its = client(inventory="essaim")
    its.tell("profan_prod", HOSTS)
    job = its.launch(PLAY, PLAY.extravars, run="abc.play")
    assert awx.jobs[job].given == {
        "limit": "profan_prod",
        "job_tags": "sudoer,docker",
        "inventory": inventory,
        "extra_vars": {"ssh": {"port": 22}, MARK: "abc.play"},
    }
    seen = [its.state(job) for _ in range(3)]
    assert [each.status for each in seen] == ["pending", "running", "successful"]
    assert [each.over for each in seen] == [False, False, True]
    assert seen[1].doing == "prepare"
    names = {name: f"profan-prod/{name.partition('.')[0]}" for name, _ in HOSTS}
    its.tell_end(job, seen[-1], PLAY, names, secrets=(), record=logs.record)
    shown = [(log["machine"], log["command"], log["output"]) for log in logs.kept]
    assert shown[0] == (
        "profan-prod/cloud",
        "playbook profan-transfert.yml: prepare",
        "prepare done",
    )
    assert len(shown) == 4


def test_simulated_a_launch_whose_answer_was_lost_is_found_again(awx, client):
    awx.template("profan-transfert")
    its = client()
    first = its.launch(PLAY, PLAY.extravars, run="abc.play")
    assert its.launch(PLAY, PLAY.extravars, run="abc.play") == first
    assert its.launch(PLAY, PLAY.extravars, run="another.play") != first


def test_simulated_a_failed_job_names_machine_and_task(awx, client, logs):
    awx.template("projects")
    awx.inventory("essaim")
    awx.fails = {"install"}
    its = client(template="projects", inventory="essaim")
    its.tell("profan_prod", HOSTS[:1])
    job = its.launch(PLAY, {}, run="abc.play")
    states = [its.state(job) for _ in range(3)]
    names = {"cloud.example.org": "profan-prod/cloud"}
    with pytest.raises(RejectedError) as caught:
        its.tell_end(job, states[-1], PLAY, names, secrets=(), record=logs.record)
    expected = "profan-prod/cloud: playbook profan-transfert.yml: task install: install failed"
    assert caught.value.what == expected


def test_simulated_a_template_that_does_not_ask_is_named_before_anything_runs(awx, client):
    awx.template("projects", ask_limit_on_launch=False, ask_variables_on_launch=False)
    with pytest.raises(RejectedError, match="does not ask for Limit, Variables") as caught:
        client(template="projects").launch(PLAY, PLAY.extravars, run="abc.play")
    assert "Prompt on launch" in caught.value.hint
    assert not awx.jobs


def test_simulated_secrets_go_only_where_awx_keeps_them_secret(awx, client):
    wanted = Play(group="g", playbook=Path("p.yml"), extravars={"token": SecretRef("token")})
    awx.template("open")
    awx.template("closed", survey={"token": "password"})
    given = {"token": "s3cret-value"}
    with pytest.raises(RejectedError, match="would show the secret token"):
        client(template="open").launch(wanted, given, run="abc.play")
    assert not awx.jobs
    client(template="closed").launch(wanted, given, run="abc.play")
    (job,) = awx.jobs.values()
    assert job.given["extra_vars"]["token"] == "s3cret-value"


def test_simulated_troubles_say_whose_they_are(awx, client, monkeypatch, tmp_path):
    its = client(template="nowhere")
    awx.fault(503)
    with pytest.raises(TransientError, match="answered 503"):
        its.launch(PLAY, {}, run="abc.play")
    with pytest.raises(RejectedError, match="no job template called nowhere"):
        its.launch(PLAY, {}, run="abc.play")
    awx.token = "another"
    with pytest.raises(SetupError, match="401"):
        its.launch(PLAY, {}, run="abc.play")
    for settings in ({"url": "http://awx.example.org"}, {"url": awx.url, "token": "plain"}):
        with pytest.raises(SetupError, match=r"awx\."):
            Awx(Site(name="cri", driver="sandbox", settings={"awx": settings}), tmp_path)


def test_simulated_a_stranger_in_its_place_is_not_told_the_token(awx, client):
    with Simulator() as other:
        its = client(ca=str(other.ca))
        with pytest.raises(TransientError, match=r"(?i)certificate"):
            its.launch(PLAY, {}, run="abc.play")
    assert not awx.calls
