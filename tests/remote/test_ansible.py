"""A role whose body is a playbook, run by the real ansible-playbook."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.remote import ansible
from essaim.remote.inventory import prepare
from essaim.remote.roles import Facts, Given
from essaim_lab.computer import free_port
from remote.conftest import machine
from remote.rig import until

PLAYBOOK = """
- hosts: worker
  gather_facts: false
  tasks:
    - name: write
      ansible.builtin.copy:
        content: "{{ token }} {{ colour }} {{ machine.hostname }} {{ members.nodes | length }}\\n"
        dest: /srv/played
        mode: "0600"
    - name: show
      ansible.builtin.command: cat /srv/played
      changed_when: false
"""
# What would run on this computer, were a machine's word taken for a template.
HOSTILE = "{{ lookup('pipe', 'echo broken-into') }}"


@pytest.fixture
def play(keyring, logs, make_role):
    def run(text, targets, **options):
        role = make_role(sources={"play.yaml": text}, ansible="play.yaml")
        options = {"proxy": None} | options
        ansible.play(role, targets, keyring=keyring, record=logs.record, note=logs.note, **options)

    return run


def known(box, **more):
    here = machine(box.name)
    return Facts(
        stack="lab",
        network="10.77.0.0/24",
        machine=here,
        members={"nodes": [here]},
        vars={"colour": "red"},
        needs={"token": Given(HOSTILE, secret=True)},
        **more,
    )


def test_a_playbook_configures_every_machine(play, boxes, logs):
    targets = [(box.target, known(box)) for box in boxes[:2]]
    before = [set(box.processes("sshd: root@notty")) for box in boxes]
    play(PLAYBOOK, targets)
    for box in boxes[:2]:
        expected = f"{HOSTILE} red {box.name.machine} 1\n"
        assert box.path("/srv/played").read_text() == expected
    assert logs.notes == ["write", "show"]
    shown = [log for log in logs.kept if log["command"] == "worker: show"]
    assert sorted(log["machine"] for log in shown) == ["lab/box-1", "lab/box-2"]
    assert all(log["output"].startswith("•••• red box-") for log in shown)
    assert HOSTILE not in str(logs.kept)
    play(PLAYBOOK, targets)
    # No connection is left behind for a play that will not come.
    until(
        lambda: all(
            set(box.processes("sshd: root@notty")) <= known
            for box, known in zip(boxes, before, strict=True)
        )
    )


def test_what_differs_between_machines_stays_theirs(play, boxes):
    targets = [
        (box.target, replace(known(box), vars={"colour": colour}))
        for box, colour in zip(boxes[:2], ("red", "blue"), strict=True)
    ]
    play(PLAYBOOK, targets)
    assert [box.path("/srv/played").read_text().split()[-3] for box in boxes[:2]] == ["red", "blue"]


def test_the_failed_task_and_its_message_are_named(play, box, logs):
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: fine, ansible.builtin.command: "false", ignore_errors: true}
    - {name: boom, ansible.builtin.shell: "echo sorry >&2; exit 4"}
    - {name: never, ansible.builtin.command: "true"}
"""
    with pytest.raises(RejectedError) as caught:
        play(text, [(box.target, known(box))])
    assert caught.value.what == "lab/box-1: role worker: task boom: sorry"
    assert caught.value.hint == "essaim logs lab/box-1"
    assert [(log["command"], log["exit_code"]) for log in logs.kept] == [
        ("worker: fine", 1),
        ("worker: boom", 4),
    ]


def test_a_playbook_that_is_none(play, box):
    with pytest.raises(RejectedError, match="role worker: ansible-playbook exited"):
        play("- hosts: [", [(box.target, known(box))])


def test_a_machine_that_does_not_answer_may_answer_later(play, box):
    target = replace(box.target, port=free_port())
    with pytest.raises(TransientError, match=r"lab/box-1: role worker: task .*refused"):
        play(PLAYBOOK, [(target, known(box))])


def test_another_host_key_is_refused(play, box, boxes):
    target = replace(box.target, host_key=boxes[1].target.host_key)
    with pytest.raises(TransientError, match=r"(?i)host key verification failed"):
        play(PLAYBOOK, [(target, known(box))])


def test_machines_are_reached_through_a_proxy(play, box, tmp_path):
    # As a driver's proxy: connects, then passes the connected socket over its own stdout.
    program = tmp_path / "dial 100%.py"
    program.write_text(
        "import socket, sys\n"
        "sock = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "out = socket.socket(fileno=1)\n"
        "socket.send_fds(out, [b'x'], [sock.fileno()])\n"
    )
    target = replace(box.target, address="192.0.2.1", port=22)
    play(
        PLAYBOOK,
        [(target, known(box))],
        proxy=lambda _: [sys.executable, str(program), str(box.port)],
    )
    assert box.path("/srv/played").exists()


def test_a_login_that_is_not_root_becomes_it(play, box):
    target = replace(box.target, user="student", become=("sudo", "-n"))
    play(PLAYBOOK, [(target, known(box))])
    assert box.enter("stat", "-c", "%U", "/srv/played").stdout == "root\n"


def test_without_ansible_the_extra_is_named(play, box, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError) as caught:
        play(PLAYBOOK, [(box.target, known(box))])
    assert "--prepare ansible" in caught.value.hint


def test_secrets_are_in_no_argument_and_no_readable_file(box, keyring, tmp_path, make_role):
    private = tmp_path / "private"
    private.mkdir()
    words = prepare(
        private,
        make_role(),
        [(box.target, known(box))],
        keyring=keyring,
        proxy=None,
    )
    assert HOSTILE not in " ".join(words)
    files = list(private.iterdir())
    assert len(files) == 4
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_an_environment_meant_for_other_playbooks_is_not_used(play, box, monkeypatch):
    monkeypatch.setenv("ANSIBLE_INVENTORY", "/nowhere")
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "no_such_callback")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    play(PLAYBOOK, [(box.target, known(box))])


def test_a_playbook_is_told_none_of_our_secrets(monkeypatch):
    monkeypatch.setenv("ESSAIM_DATABASE", "postgresql://essaim:secret@db/essaim")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    env = ansible.own_environment()
    assert env["HTTPS_PROXY"] == "http://proxy"
    assert not any("essaim:secret" in value for value in env.values())
