"""A lock proves that two clusters are the same, and says what is not (R-A4, R-A6)."""

from __future__ import annotations

import fnmatch
import json
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from endtoend import people
from endtoend.conftest import take_down
from testcache import CACHE

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

FILES = {
    "stack.yaml": """\
        defaults: [{size: tiny}, {site: local}, _self_]
        name: twin
        image: base
        nodes: 1
        topology:
          head: {roles: [head]}
          nodes: {count: "${nodes}", roles: [node]}
        network: {cidr: 10.9.0.0/24}
        vars: {head: {token: !secret token}}
        """,
    "roles/head/role.yaml": """\
        vars: {token: ""}
        files: [{content: "{{ vars.token }}\\n", to: /etc/token, mode: "0600"}]
        provides:
          token: {command: cat /etc/token, secret: true}
          where: {value: "{{ machine.address }}"}
        """,
    "roles/node/role.yaml": """\
        needs: {token: head, where: head}
        packages: [openssh-server]
        files:
          - {template: motd.j2, to: /etc/motd}
          - {copy: tool, to: /usr/local/bin/tool, mode: "0755"}
          - {content: "{{ needs.where }} {{ needs.token }}\\n", to: /etc/given, mode: "0640"}
        run:
          - {name: folder, unless: test -d /srv/work, do: mkdir /srv/work}
          - {name: once, do: "echo made >/srv/once"}
        ready: {command: test -d /srv/work}
        """,
    "roles/node/motd.j2": "{{ machine.name }} of {{ stack }}\n",
    "roles/node/tool": "#!/bin/sh\necho tool\n",
    "secrets/token": "swordfish\n",
}
#: Digests of every file of a machine, but for those that live in memory.
EVERYTHING = "find / -xdev -type f -print0 | xargs -0 sha256sum"


def plant(lab: Path) -> Path:
    for name, text in FILES.items():
        file = lab / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    (lab / "secrets/token").chmod(0o600)
    return lab


def everything(person: people.Person, machine: str, lock: dict) -> dict[str, str]:
    """What a machine holds, but for what its lock says may differ."""
    free = [path for may in lock["may_differ"] for path in may["paths"]]
    said = person.types("run", machine, "--", "sh", "-c", EVERYTHING)
    found = {path: digest for digest, path in (line.split("  ", 1) for line in said.splitlines())}
    return {
        path: digest
        for path, digest in found.items()
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in free)
    }


@dataclass(frozen=True)
class Twin:
    """A stack that was locked, raised, taken down and raised again; and what was seen each time."""

    person: people.Person
    lab: Path
    reports: list[dict[str, Any]]
    held: list[dict[str, str]]
    between: str  #: what `verify` said while nothing was there


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    place = tmp_path_factory.mktemp("twin")
    person = people.root(place / "home", CACHE)
    person.home.mkdir()
    lab = plant(place / "lab")
    person.types("lock", str(lab), within=600)
    lock = json.loads((lab / "essaim.lock").read_text())
    it = Twin(person, lab, [], [], "")
    for number in range(2):
        if number:
            person.types("down", "twin", "--yes")
            it = replace(it, between=person.types("verify", str(lab), code=1))
        person.types("up", str(lab), "--locked", within=600)
        it.reports.append(json.loads(person.types("verify", str(lab), "--json")))
        it.held.append(everything(person, "twin/nodes-1", lock))
    yield it
    take_down(person)


def test_two_raises_of_one_lock_differ_in_nothing_but_what_it_says(twin):
    assert [report["verdict"] for report in twin.reports] == ["identical", "identical"]
    one, two = ({node["name"]: node for node in each["nodes"]} for each in twin.reports)
    assert set(one) == {"twin/head", "twin/nodes-1"}
    assert {"/etc/motd", "/etc/given"} <= set(one["twin/nodes-1"]["seen"]["files"])
    for name in one:
        assert one[name]["seen"] == two[name]["seen"]
        for what in ("boot", "host_key"):
            assert one[name]["free"][what] != two[name]["free"][what]
    assert len(twin.held[0]) > 5000
    assert twin.held[0] == twin.held[1]


def test_machines_that_are_gone_are_missed(twin):
    assert "ok  description" in twin.between
    for name in ("head", "nodes-1"):
        assert f"NO  twin/{name} is not there" in twin.between


def test_overrides_are_taken_as_by_lock(twin):
    """What README says: the arguments of `lock` and `up`, typed again."""
    person, lab = twin.person, str(twin.lab)
    same = json.loads(person.types("verify", lab, "nodes=1", "size=tiny", "--json"))
    assert same["verdict"] == "identical"
    other = person.types("verify", lab, "nodes=2", code=1)
    assert "nodes-2" in other


def test_no_secret_is_in_a_lock_or_a_report(twin):
    assert "swordfish" not in (twin.lab / "essaim.lock").read_text()
    assert "swordfish" not in json.dumps(twin.reports)


def test_a_changed_role_file_is_named_and_not_raised(twin):
    file = twin.lab / "roles/node/motd.j2"
    before = file.read_text()
    try:
        file.write_text("welcome\n")
        refused = twin.person.types("up", str(twin.lab), "--locked", code=1)
        assert "twin is not what was locked" in refused
        assert "roles/node/motd.j2 has changed since the lock" in refused

        twin.person.types("up", str(twin.lab))
        said = twin.person.types("verify", str(twin.lab), code=1)
    finally:
        file.write_text(before)
    assert "NO  roles/node/motd.j2 has changed since the lock" in said
    assert "NO  twin/nodes-1 role node would be applied otherwise: its files changed" in said
    assert "NO  twin/nodes-1 /etc/motd does not hold what role node writes there" in said
    assert "NO  twin/nodes-1 role node was applied in another state: its files changed" in said
    assert "ok  twin/head" in said, "nobody else is blamed"
    twin.person.types("up", str(twin.lab), "--locked")


def test_a_hand_edited_machine_is_found_out(twin):
    edits = {
        "echo more >>/etc/motd": "/etc/motd does not hold what role node writes there",
        "echo more >>/etc/given": "/etc/given does not hold what role node writes there",
        "chmod 0700 /usr/local/bin/tool": "/usr/local/bin/tool has mode 700, not 755",
        "chown daemon /etc/given": "/etc/given belongs to daemon, not root",
        "rmdir /srv/work": "step folder of role node is undone: it would run again",
        "hostname other": "calls itself other, not nodes-1",
        "echo more >>/etc/services; rm /usr/bin/pgrep": (
            "has files that are not as their packages have them: /etc/services, /usr/bin/pgrep"
        ),
        "dpkg --remove less": "lacks packages: less ",
        "echo ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA eve >>/root/.ssh/authorized_keys": (
            "lets in a key that Essaim did not put there: SHA256:"
        ),
    }
    twin.person.types("run", "twin/nodes-1", "--", "sh", "-ec", "\n".join(edits))
    said = twin.person.types("verify", str(twin.lab), code=1)
    for words in edits.values():
        assert f"NO  twin/nodes-1 {words}" in said
    assert "NO  twin/nodes-1 role node does not do its work" in said
    assert "ok  description" in said
    assert "ok  twin/head" in said
    assert "twin: different (1 identical, 1 different)" in said
    *_, mend, anew = said.splitlines()
    assert mend == f"mend with: essaim up {twin.lab} --locked --deep"
    assert anew.endswith(f"essaim down twin, then essaim up {twin.lab} --locked")


def test_the_line_that_mends_does(twin):
    """The machine that was edited by hand is as its roles write it again."""
    twin.person.types("up", str(twin.lab), "--locked", "--deep")
    said = twin.person.types("verify", str(twin.lab), code=1)
    assert "role node" not in said
    assert "lacks packages: less" in said


def test_another_image_is_named_and_so_is_another_secret(twin):
    secret = twin.lab / "secrets/token"
    twin.person.types("up", str(twin.lab), "image=slurm", "nodes=2", "--yes", within=840)
    try:
        secret.write_text("marlin\n")
        said = twin.person.types("verify", str(twin.lab), code=1)
    finally:
        secret.write_text(FILES["secrets/token"])
    assert "ok  description" in said, "the files are as locked, the machines are not"
    assert "NO  twin/nodes-2 is not in the lock" in said
    for node in ("head", "nodes-1"):
        assert f"NO  twin/{node} is made from another image: image slurm (" in said
        assert f"NO  twin/{node} has packages the lock does not: " in said
    assert "NO  twin/head /etc/token does not hold what role head writes there" in said
    assert "marlin" not in said


def test_without_a_lock_nothing_can_be_told(root):
    said = root.types("verify", "examples/bare", code=3)
    assert "there is no lock" in said
    assert "essaim lock STACK" in said
