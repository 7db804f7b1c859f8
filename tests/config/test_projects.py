"""A project's file: the school's own form unchanged, and every mistake named with its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from essaim.config.plays import files_digest, has_secrets, resolve
from essaim.config.projected import is_project, keys_of, network_of, play_of
from essaim.config.projects import compose_project
from essaim.config.secrets import SecretRef
from essaim.config.serial import stack_from_json, stack_to_json
from essaim.model.errors import InvalidError, SetupError
from essaim.model.stacks import Network, Size

EXAMPLE = Path(__file__).parents[2] / "examples" / "project" / "profan.yaml"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIL6NHka0vPM5eYtLmxJkfxWoHj6Zrs7rh3/fyOCLJ3Qu"
SITE = 'driver: sandbox\nbases: {"dirs-nfs:debian-11-standard": base}\n'
PROXMOX = """
driver: proxmox
url: https://pve1.example.org:8006
token: essaim@pve!plane
secret: {env: PVE_TOKEN}
fingerprint: %s
ids: 50000-59999
storage: vol-ceph-1
""" % ("ab" * 32)
MACHINE = """- hostname: {name}.example.org
  base: dirs-nfs:debian-11-standard
  ip: 192.168.79.{last}/24
"""


@pytest.fixture
def lab(tmp_path):
    """A lab with a site, a key and a playbook."""
    for name, text in {
        "essaim.yaml": "",
        "site/cri.yaml": SITE,
        "site/pve.yaml": PROXMOX,
        "keys/limosadm.pub": f"# who\n{KEY} one\n{KEY} two\n",
        "workspaces/ansible/playbooks/site.yml": "- hosts: all\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def write(lab, text):
    (lab / "profan.yaml").write_text(text)
    return str(lab / "profan.yaml")


def composed(lab, text, **options):
    return compose_project(write(lab, text), **options).stack


def wrong(lab, text, **options):
    """What is wrong with a file: line, sentence and hint of each problem."""
    with pytest.raises(InvalidError) as caught:
        compose_project(write(lab, text), **options)
    assert all(p.place and p.place.file.endswith("profan.yaml") for p in caught.value.problems)
    return [(p.place.line, p.what, p.hint) for p in caught.value.problems]


def test_the_example_of_the_school_is_taken_unchanged():
    project = compose_project(str(EXAMPLE))
    stack = project.stack
    assert stack.name == "profan-prod"
    assert stack.site.name == "cri"
    assert stack.network == Network(cidr="192.168.79.0/24")
    (machine,) = stack.machines
    assert str(machine.name) == "profan-prod/cloud"
    assert machine.address == "192.168.79.170"
    assert machine.size == Size(cores=4, memory=4096, disk=300)
    assert machine.image == "base"
    (key,) = keys_of(machine)
    assert {k: v for k, v in machine.labels.items() if k != "keys"} == {
        "host": "cloud.prod.pft.cri.local.isima.fr",
        "ip": "192.168.79.170/24",
        "node": "pve2",
        "storage": "vol-ceph-1",
        "bridge": "vibr279",
        "gateway": "192.168.79.254",
        "description": "Profan - Cloud - PROD",
    }
    assert key.endswith(" limosadm")
    play = play_of(stack)
    assert (play.group, play.tags) == ("profan_prod", ("sudoer", "pip", "docker"))
    assert play.playbook == EXAMPLE.parent / "workspaces/ansible/playbooks/profan-transfert.yml"
    assert play.home == EXAMPLE.parent / "workspaces/ansible"
    assert play.extravars == {
        "ssh": {"port": 22, "permit_root_login": "yes", "allow_agent_forwarding": "yes"}
    }
    assert is_project(stack)
    assert stack_from_json(stack_to_json(stack)) == stack


def test_every_mistake_is_named_at_once_with_its_line(lab):
    text = """ct:
- hostname: "cloud prod"
  base: "dirs-nfs:debian-11-standard"
  ip: "192.168.79.170"
  memory: "4 gigs"
  cores: "0"
  rootfs: "300x"
  gw: "192.168.79.300"
  hostnme: x
- hostname: web.example.org
  base: dirs-nfs:debian-11-standrad
  ip: 192.168.79.1/24
  gw: 192.168.80.254
  ssh-public-keys: limosad
- base: "-"
cluster: cir
worksapce: projects
ansible:
  group: "profan prod"
  playbok: site.yml
  tags: ['ok', 'not ok']
"""
    found = wrong(lab, text)
    said = {line: what for line, what, _ in found}
    hints = {what: hint for _, what, hint in found}
    assert said[2].startswith("ct.0.hostname must be a host's full name, not 'cloud prod'")
    assert said[4].startswith("ct.0.ip must be an address with its mask")
    assert said[5] == "ct.0.memory must be an amount, not '4 gigs'"
    assert said[6] == "ct.0.cores must be 1 or more, not '0'"
    assert said[7] == "ct.0.rootfs must be an amount, not '300x'"
    assert said[8].startswith("ct.0.gw must be an address")
    assert said[9] == "unknown key ct.0.hostnme"
    assert hints["unknown key ct.0.hostnme"] == "did you mean hostname?"
    assert said[12] == "ct.1.ip: 192.168.79.1 cannot be a machine's address in 192.168.79.0/24"
    assert said[13] == "ct.1.gw: 192.168.80.254 cannot be a gateway of 192.168.79.0/24"
    assert said[14] == "ct.1.ssh-public-keys: there is no key limosad"
    assert hints[said[14]] == "did you mean limosadm?"
    assert {what for line, what, _ in found if line == 15} == {
        "ct.2.hostname is missing",
        "ct.2.ip is missing",
        "ct.2.base must say what it is made from, not '-'",
    }
    assert said[16] == "there is no site cir"
    assert hints[said[16]] == "did you mean cri?"
    assert said[17] == "unknown key worksapce"
    assert hints[said[17]] == "did you mean workspace?"
    assert said[19].startswith("ansible.group must name a group")
    assert hints["unknown key ansible.playbok"] == "did you mean playbook?"
    assert said[21].startswith("ansible.tags.1 must be a tag, not 'not ok'")
    assert len(found) == 18
    assert [line for line, *_ in found] == sorted(line for line, *_ in found)


def test_what_is_wrong_between_the_lines(lab):
    text = (
        "ct:\n"
        + MACHINE.format(name="one", last=10)
        + MACHINE.format(name="one", last=11)
        + MACHINE.format(name="two", last=10)
        + "- {hostname: one.example.com, base: nothing, ip: 192.168.80.9/24}\n"
        + "cluster: cri\nansible: {group: g, playbook: sit.yml, executor: awx}\n"
    )
    found = wrong(lab, text)
    assert [(line, what) for line, what, _ in found] == [
        (5, "ct.1.hostname: one.example.org is already that of line 2"),
        (10, "ct.2.ip: 192.168.79.10 is already that of line 4"),
        (11, "ct.3.hostname: one is already that of line 2"),
        (11, "ct.3.base: site cri has nothing called nothing"),
        (11, "ct.3.ip is in 192.168.80.0/24, the first in 192.168.79.0/24"),
        (13, "ansible.executor: site cri names no AWX"),
    ]
    assert found[2][2] == "give one of them a name: of its own"
    assert 'bases: {"nothing": IMAGE}' in found[3][2]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("cluster: cri\n", 1, "the project has no machines"),
        ("ct: 4\n", 1, "ct must be a list, not 4"),
        ("ct: [3]\ncluster: cri\n", 1, "ct.0 must be a mapping"),
        (
            "cluster: cri\nansible: {playbook: ../site.yml}\nct:\n"
            + MACHINE.format(name="a", last=9),
            2,
            "ansible.playbook must name a playbook",
        ),
        (
            "cluster: cri\nansible:\n  playbook: sites.yml\nct:\n"
            + MACHINE.format(name="a", last=9),
            3,
            "ansible.playbook: there is no playbook sites.yml",
        ),
        (
            "cluster: cri\nansible:\n  tags: [a]\nct:\n" + MACHINE.format(name="a", last=9),
            2,
            "ansible.playbook is missing",
        ),
    ],
)
def test_one_mistake(lab, text, line, what):
    assert any(at == line and said.startswith(what) for at, said, _ in wrong(lab, text))


def test_a_file_that_is_not_there_has_a_near_spelling(lab):
    write(lab, "")
    with pytest.raises(InvalidError, match=r"did you mean .*profan.yaml"):
        compose_project(str(lab / "profam.yaml"))


def test_without_a_group_the_file_names_the_project(lab):
    stack = composed(lab, "cluster: cri\nct:\n" + MACHINE.format(name="one", last=10))
    assert stack.name == "profan"
    assert play_of(stack) is None
    renamed = composed(lab, "ct:\n" + MACHINE.format(name="a", last=9), site="cri", name="my_own")
    assert renamed.name == "my-own"


def test_keys_may_be_named_or_written(lab):
    text = "cluster: cri\nct:\n" + MACHINE.format(name="one", last=10)
    named = composed(lab, text + "  ssh-public-keys: limosadm\n")
    assert keys_of(named.machines[0]) == (f"{KEY} one", f"{KEY} two")
    both = composed(lab, text + f"  ssh-public-keys: [limosadm, {KEY} me]\n")
    assert keys_of(both.machines[0]) == (f"{KEY} one", f"{KEY} two", f"{KEY} me")


def test_on_proxmox_a_base_is_what_the_cluster_has(lab):
    text = (
        "cluster: pve\nct:\n"
        + MACHINE.format(name="one", last=10)
        + "  net0: name=eth0,bridge=vmbr0,tag=285\n"
        + "vm:\n- {hostname: two.example.org, base: debian-gui, ip: 10.0.0.9/16}\n"
    )
    stack = composed(lab, text)
    one, two = stack.machines
    assert stack.images[one.image].settings == {
        "kind": "lxc",
        "ostemplate": "dirs-nfs:debian-11-standard",
    }
    assert stack.images[two.image].settings == {
        "kind": "qemu",
        "template": "debian-gui",
        "clone": "full",
    }
    assert (one.group, two.group) == ("ct", "vm")
    assert (one.labels["bridge"], one.labels["vlan"]) == ("vmbr0", "285")
    assert network_of(two, stack) == Network(cidr="10.0.0.0/16")
    # A lab may say which archive a short name stands for.
    (lab / "images").mkdir()
    (lab / "images" / "debian-11-standard.yaml").write_text(
        "builder: template\nostemplate: local:vztmpl/debian-11-standard_11.7-1_amd64.tar.zst\n"
    )
    named = composed(lab, text)
    assert named.machines[0].image == "debian-11-standard"


def test_extravars_are_read_as_ansible_reads_them(lab):
    text = (
        "cluster: cri\nct:\n"
        + MACHINE.format(name="one", last=10)
        + """ansible:
  playbook: site.yml
  tags: a, b
  extravars:
    open: yes
    quoted: 'yes'
    day: 2026-01-31
    list: [1, "2"]
    token: !secret profan/token
    other: {secret: {env: PROFAN_TOKEN}}
    env: {env: prod}
"""
    )
    play = play_of(stack_from_json(stack_to_json(composed(lab, text))))
    assert play.group == "profan"
    assert play.tags == ("a", "b")
    assert play.extravars == {
        "open": True,
        "quoted": "yes",
        "day": "2026-01-31",
        "list": [1, "2"],
        "token": SecretRef("profan/token"),
        "other": {"secret": {"env": "PROFAN_TOKEN"}},
        "env": {"env": "prod"},
    }
    assert [key for key, value in play.extravars.items() if has_secrets(value)] == [
        "token",
        "other",
    ]


def test_secrets_come_from_the_lab_the_environment_or_a_file(lab, monkeypatch):
    monkeypatch.setenv("PROFAN_TOKEN", "from-environment")
    (lab / "secrets").mkdir()
    for name, mode in (("kept", 0o600), ("open", 0o644)):
        (lab / "secrets" / name).write_text(f"{name}-value\n")
        (lab / "secrets" / name).chmod(mode)
    hidden = []
    given = {
        "a": SecretRef("kept"),
        "b": [{"secret": {"env": "PROFAN_TOKEN"}}],
        "c": {"secret": {"file": "secrets/kept"}},
        "d": {"secret": "a word"},
    }
    assert resolve(given, lab, hidden) == {
        "a": "kept-value",
        "b": ["from-environment"],
        "c": "kept-value",
        "d": {"secret": "a word"},
    }
    assert hidden == ["kept-value", "from-environment", "kept-value"]
    with pytest.raises(SetupError, match="may be read by others"):
        resolve({"secret": {"file": "secrets/open"}}, lab, [])
    for lacking in ({"env": "PROFAN_LACKS"}, {"file": "secrets/lacks"}):
        with pytest.raises(SetupError):
            resolve({"secret": lacking}, lab, [])


def test_a_playbook_has_changed_when_what_it_reads_has(lab):
    playbook = lab / "workspaces/ansible/playbooks/site.yml"
    home = lab / "workspaces/ansible"
    seen = [files_digest(playbook)]

    def changes(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        seen.append(files_digest(playbook))
        return len(set(seen)) == len(seen)

    assert not changes(home / "playbooks" / "another.yml", "- hosts: all\n")
    seen.pop()
    assert changes(playbook, "- import_playbook: another.yml\n")
    assert changes(home / "playbooks" / "another.yml", "- hosts: web\n")
    assert changes(home / "group_vars" / "all.yml", "a: 1\n")
    assert changes(home / "roles" / "docker" / "tasks" / "main.yml", "[]\n")
    assert not changes(home / "README.md", "words\n")


def test_no_sentence_shows_a_secret(lab):
    text = "cluster: cri\nct: []\nansible: {playbook: 3, extravars: {token: !secret '../x'}}\n"
    with pytest.raises(InvalidError) as caught:
        compose_project(write(lab, text))
    assert not re.search("Traceback|SecretRef", caught.value.what)
