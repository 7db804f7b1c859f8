"""A project's playbook, played by the real ansible-runner on machines with a real SSH server."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from databases import free_port
from essaim.config.plays import Play
from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.remote import playing
from essaim.remote.playing import Player
from patience import in_test_all
from remote.rig import until

PLAYBOOK = """
- hosts: profan_prod
  gather_facts: false
  tasks:
    - name: write
      ansible.builtin.copy:
        content: "{{ ssh.port }} {{ ssh.root }} {{ token }} {{ colour | default('none') }}\\n"
        dest: /srv/played
        mode: "0600"
      tags: [docker]
    - name: show
      ansible.builtin.command: cat /srv/played
      changed_when: false
      tags: [docker]
    - name: never
      ansible.builtin.file: {path: /srv/never, state: touch, mode: "0600"}
"""
# What would run on this computer, were a secret taken for a template.
HOSTILE = "{{ lookup('pipe', 'echo broken-into') }}"
VARS = {"ssh": {"port": 22, "root": "yes"}, "token": HOSTILE}


@pytest.fixture
def play(keyring, logs, tmp_path):
    def run(text, players, *, extravars=VARS, name="play.yml", **options):
        playbook = tmp_path / "ws" / "ansible" / "playbooks" / name
        playbook.parent.mkdir(parents=True, exist_ok=True)
        playbook.write_text(text)
        tags = options.pop("tags", ("docker",))
        playing.play(
            Play(group="profan_prod", playbook=playbook, tags=tags),
            players,
            extravars,
            secrets=[HOSTILE],
            keyring=keyring,
            record=logs.record,
            note=logs.note,
            **({"proxy": None} | options),
        )

    return run


def player(box, **changes):
    return Player(name=f"{box.name.machine}.example.org", target=replace(box.target, **changes))


def test_extravars_arrive_by_tag_and_secrets_are_not_shown(play, boxes, logs, tmp_path):
    held = tmp_path / "ws" / "ansible" / "host_vars"
    held.mkdir(parents=True)
    (held / "box-1.example.org.yml").write_text("colour: red\n")
    play(PLAYBOOK, [player(box) for box in boxes[:2]])
    written = [box.path("/srv/played").read_text() for box in boxes[:2]]
    assert written == [f"22 yes {HOSTILE} red\n", f"22 yes {HOSTILE} none\n"]
    assert not boxes[0].path("/srv/never").exists()
    assert logs.notes == ["write", "show"]
    shown = [log for log in logs.kept if log["command"] == "playbook play.yml: show"]
    assert sorted((log["machine"], log["exit_code"]) for log in shown) == [
        ("lab/box-1", 0),
        ("lab/box-2", 0),
    ]
    assert "22 yes •••• red" in {log["output"] for log in shown}
    assert HOSTILE not in str(logs.kept)


@in_test_all
def test_the_failed_task_its_machine_and_its_message_are_named(play, box, logs):
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: fine, ansible.builtin.command: "false", ignore_errors: true}
    - {name: boom, ansible.builtin.shell: "echo sorry >&2; exit 4"}
    - {name: never, ansible.builtin.command: "true"}
"""
    with pytest.raises(RejectedError) as caught:
        play(text, [player(box)], tags=())
    assert caught.value.what == "lab/box-1: playbook play.yml: task boom: sorry"
    assert caught.value.hint == "essaim logs lab/box-1"
    assert [(log["command"], log["exit_code"]) for log in logs.kept] == [
        ("playbook play.yml: fine", 1),
        ("playbook play.yml: boom", 4),
    ]


@in_test_all
def test_a_playbook_for_other_machines_is_refused(play, box):
    with pytest.raises(RejectedError, match="is for none of the machines") as caught:
        play("- hosts: others\n  tasks: []\n", [player(box)])
    assert "profan_prod" in caught.value.hint


@in_test_all
def test_a_playbook_that_is_none(play, box):
    with pytest.raises(RejectedError, match=r"playbook play.yml: ansible-playbook exited"):
        play("- hosts: [", [player(box)])


@in_test_all
def test_another_host_key_is_refused(play, box, boxes):
    with pytest.raises(TransientError, match=r"(?i)host key verification failed"):
        play(PLAYBOOK, [player(box, host_key=boxes[1].target.host_key)])


@in_test_all
def test_a_machine_that_does_not_answer_may_answer_later(play, box):
    with pytest.raises(TransientError, match=r"lab/box-1: playbook play.yml: task .*refused"):
        play(PLAYBOOK, [player(box, port=free_port())])


def test_secrets_are_in_no_argument_and_no_readable_file(box, keyring, tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    wanted = Play(group="profan_prod", playbook=tmp_path / "play.yml")
    playing.fill(private, wanted, [player(box)], VARS, keyring=keyring, proxy=None)
    files = [path for path in private.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    holding = [path for path in files if "broken-into" in path.read_text()]
    assert holding == [private / "env" / "extravars"]


@in_test_all
def test_a_play_does_not_outlive_whoever_asked_for_it(box, keyring, tmp_path):
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: begin, ansible.builtin.file: {path: /srv/begun, state: touch, mode: "0600"}}
    - {name: long, ansible.builtin.command: sleep 600}
"""
    playbook, place = tmp_path / "long.yml", tmp_path / "box"
    playbook.write_text(text)
    place.mkdir()
    wanted = Play(group="all_of_them", playbook=playbook)
    playing.fill(place, wanted, [player(box)], {}, keyring=keyring, proxy=None)
    programs = playing.find_runner()
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    env |= {"ANSIBLE_CONFIG": str(place / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "True"}
    process = subprocess.Popen(
        [sys.executable, "-m", "essaim.remote.player", str(place)],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=place,
    )
    until(box.path("/srv/begun").exists, within=120)
    process.stdin.close()  # as when the worker was killed
    assert process.wait(timeout=60) == 0
    plays = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(playbook) not in plays.stdout
    assert not place.exists()


def test_without_ansible_runner_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(playing, "find_spec", lambda _name: None)
    with pytest.raises(SetupError) as caught:
        playing.find_runner()
    assert "--prepare ansible" in caught.value.hint
