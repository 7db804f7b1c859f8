"""A stranger with a machine that may join gets no code run on the control plane."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from essaim.config.plays import Play
from essaim.model.errors import EssaimError, InvalidError
from essaim.model.fleet import Role as UserRole
from essaim.model.names import MachineName
from essaim.model.roles import Role
from essaim.model.stacks import Machine, Size
from essaim.remote import ansible, playing
from essaim.remote.inventory import for_json
from essaim.remote.keyring import Keyring
from essaim.remote.render import Facts, Given
from essaim.remote.ssh import Target
from essaim.usecases import nodes
from usecases.plane import Plane, machine

#: Evaluates every variable of a host, and reaches for it by SSH as the inventory says.
PLAYBOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - name: evaluate here
      ansible.builtin.debug:
        msg: "{{ hostvars[inventory_hostname] | to_json }} {{ vars | default({}) | to_json }}"
      delegate_to: localhost
      ignore_errors: true
    - name: reach
      ansible.builtin.command: "true"
"""


@pytest.fixture
def hostile(tmp_path) -> tuple[str, Path]:
    """Text that leaves a file behind when it is evaluated, and that file."""
    proof = tmp_path / "run-on-the-control-plane"
    return f"{{{{ lookup('pipe', 'touch {proof}') }}}}", proof


@pytest.fixture
def keyring(tmp_path) -> Keyring:
    return Keyring(tmp_path / "keys")


def known(text: str) -> tuple[Target, Facts]:
    """A machine of which everything that is text is hostile, as far as it is not checked before."""
    name = MachineName("fleet", "rogue")
    own = Machine(
        name=name,
        group="fleet",
        index=1,
        address=text,
        image=text,
        size=Size(cores=1, memory=1),
        labels={"room": text},
        roles=(text,),
    )
    facts = Facts(
        stack=text,
        network="192.0.2.0/24",
        machine=own,
        members={"workers": [own]},
        vars={"wish": text, "many": [text, {"deep": (text,)}]},
        needs={"token": Given(text), "secret": Given(text, secret=True)},
    )
    return Target(name=name, address=text, host_key=text, user=text), facts


@pytest.mark.parametrize("tunnel", [True, False])
def test_a_worker_whose_address_is_a_template_may_not_join(sqlite, hostile, tunnel):
    plane = Plane(sqlite)
    token = nodes.enrol(plane, plane.user("root", UserRole.ADMIN))
    with pytest.raises(InvalidError, match="address is not an IP address or a host name"):
        nodes.register(plane, token, machine("rogue", address=hostile[0], tunnel=tunnel))
    assert plane.fleet.list() == []


def test_a_worker_behind_a_tunnel_has_no_address(sqlite):
    plane = Plane(sqlite)
    token = nodes.enrol(plane, plane.user("root", UserRole.ADMIN))
    nodes.register(plane, token, machine("one", address="192.0.2.9", tunnel=True))
    assert [node.address for node in plane.fleet.list()] == [""]


def test_nothing_a_lease_or_a_stack_tells_ansible_is_evaluated(hostile, keyring, tmp_path):
    text, proof = hostile
    playbook = tmp_path / "play.yaml"
    playbook.write_text(PLAYBOOK)
    role = Role(name="lease_account", path=tmp_path, digest="")
    with pytest.raises(EssaimError):  # there is no such machine
        ansible.play(
            role,
            [known(text)],
            playbook,
            proxy=None,
            keyring=keyring,
            record=lambda **_: None,
            note=lambda _: None,
        )
    assert not proof.exists()


def test_nothing_a_project_tells_ansible_is_evaluated(hostile, keyring, tmp_path):
    text, proof = hostile
    playbook = tmp_path / "play.yaml"
    playbook.write_text(PLAYBOOK)
    target, facts = known(text)
    with pytest.raises(EssaimError):  # there is no such machine
        playing.play(
            Play(group="rogues", playbook=playbook, tags=()),
            [playing.Player(name="rogue.example.org", target=target, vars=facts.vars)],
            dict(facts.vars),
            secrets=[],
            keyring=keyring,
            proxy=None,
            record=lambda **_: None,
            note=lambda _: None,
        )
    assert not proof.exists()


def test_nothing_an_inventory_for_plain_ansible_tells_is_evaluated(hostile, keyring, tmp_path):
    text, proof = hostile
    playbook, script = tmp_path / "play.yaml", tmp_path / "inventory"
    playbook.write_text(PLAYBOOK)
    target, _ = known(text)
    told = for_json(
        playing.connection(target, keyring=keyring, known_hosts=tmp_path / "known", proxy=None)
    )
    said = {"_meta": {"hostvars": {"rogue": told}}, "all": {"hosts": ["rogue"]}}
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(said)}\nEND\n")
    script.chmod(0o700)
    words = [ansible.find_program(), "-i", str(script), str(playbook)]
    done = subprocess.run(words, capture_output=True, check=False, timeout=120, cwd=tmp_path)
    assert b"evaluate here" in done.stdout
    assert not proof.exists()


def test_the_attack_is_one(hostile, tmp_path):
    """The same text, told as Ansible's own variables are, does run."""
    text, proof = hostile
    inventory, playbook = tmp_path / "hosts.yaml", tmp_path / "play.yaml"
    inventory.write_text(f'all: {{hosts: {{rogue: {{ansible_host: "{text}"}}}}}}\n')
    playbook.write_text(PLAYBOOK)
    words = [ansible.find_program(), "-i", str(inventory), str(playbook)]
    subprocess.run(words, capture_output=True, check=False, timeout=120, cwd=tmp_path)
    assert proof.exists()
