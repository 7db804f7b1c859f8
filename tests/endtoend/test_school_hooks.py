"""The shipped hooks in real LXC containers, on a simulated Proxmox VE, against a real directory.

The containers are unprivileged (user namespaces with the id map of examples/school); the homes are
folders of the node, where a real one would mount the file server's export.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from databases import find
from endtoend.people import OURS, ROOT, Person
from endtoend.school_directory import (
    ADDRESS,
    BIND_PASSWORD,
    PASSWORDS,
    UIDS,
    NodeShell,
    directory,
    make_certificates,
)
from endtoend.school_rig import Lab, lab_proxmox
from patience import in_test_all
from servers import daemons
from testcache import CACHE

HOOKS = ROOT / "examples" / "school" / "hooks"


@dataclass(frozen=True)
class School:
    """A cluster whose nodes are prepared as docs/proxmox.md says, and its operator."""

    place: Path
    person: Person
    cluster: Lab
    node: NodeShell

    def machine(self, host: str) -> dict[str, str]:
        """Where ssh reaches a machine, and its host key, once it is there."""
        secret = Path(self.cluster.told["lab_secret"]).read_text()

        def found() -> dict[str, str] | None:
            machines = self.cluster._get("lab/machines", f"Bearer {secret}")
            return next((m for m in machines.values() if m["name"] == host), None)

        return daemons.wait(host, found)

    def inside(self, host: str, command: str) -> str:
        """What a command of root's says in a container."""
        file = self.node.run(f"cd /etc/pve/lxc && grep -lx 'hostname: {host}' *.conf")
        return self.node.run(f"pct exec {file.partition('.')[0]} -- sh -c '{command}'")

    def ssh(
        self, login: str, at: str, command: str, *how: str, password: str = ""
    ) -> tuple[int, str]:
        """Log in to somebody's machine: by password, or else as `how` says."""
        seen = self.machine(at)
        host = seen["ssh"].partition(":")[0]
        known = self.place / "known_hosts"
        known.write_text(f"{host} {seen['host_key']}\n")
        methods = "password" if password else "publickey"
        options = (
            f"PreferredAuthentications={methods}", f"UserKnownHostsFile={known}",
            "StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "NumberOfPasswordPrompts=1",
            "KexAlgorithms=curve25519-sha256",
        )  # fmt: skip
        words = [word for option in options for word in ("-o", option)]
        done = subprocess.run(
            ["sshpass", "-e", "ssh", "-F", "none", *words, *how, f"{login}@{host}", command],
            env={"PATH": "/usr/bin:/bin", "SSHPASS": password},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=daemons.PATIENCE,
        )
        return done.returncode, done.stdout

    def enters(self, login: str, at: str, command: str = "true") -> str:
        """Log in with the password of the directory, as soon as that is possible."""
        found: list[str] = []

        def entered() -> bool:
            code, said = self.ssh(login, at, command, password=PASSWORDS[login])
            found[:] = [said]
            return code == 0

        try:
            daemons.wait(f"{login} to enter {at}", entered)
        except pytest.fail.Exception:
            pytest.fail(f"{found[0]}\n{self.explain(at)}")
        return found[0]

    def refused(self, login: str, at: str, *how: str, password: str = "") -> bool:
        """Whether the machine, which lets its own student in, refuses."""
        code, said = self.ssh(login, at, "true", *how, password=password)
        return code != 0 and ("Permission denied" in said or "Connection closed" in said)

    def task_logs(self) -> str:
        """What the tasks of the cluster have said."""
        secret = Path(self.cluster.told["root_secret"]).read_text()
        who = f"PVEAPIToken={self.cluster.told['root']}={secret}"
        lines = []
        for task in self.cluster._get("api2/json/cluster/tasks", who):
            path = f"api2/json/nodes/{task['node']}/tasks/{task['upid']}/log"
            lines += [line["t"] for line in self.cluster._get(path, who)]
        return "\n".join(lines)

    def explain(self, host: str) -> str:
        return self.inside(host, "tail -n 20 /var/log/sssd/*.log; ps ax")


@pytest.fixture(scope="module")
def school(tmp_path_factory) -> Iterator[School]:
    for program, package in (
        ("lxc-start", "lxc"), ("newuidmap", "uidmap"), ("sshd", "openssh-server"),
        ("sshpass", "sshpass"), ("mmdebstrap", "mmdebstrap"), ("ip", "iproute2"),
    ):  # fmt: skip
        find(program, package)
    place = tmp_path_factory.mktemp("school")
    lab = place / "lab"
    shutil.copytree(ROOT / "examples" / "school", lab)
    person = Person(place / "home", lab, OURS, extra={"ESSAIM_CACHE": str(CACHE)})
    person.home.mkdir()
    words = ("--speed", "50", "--port", "0", "--real", "--lxc", "--image", "student")
    with lab_proxmox(person, *words) as cluster:
        site = Path(cluster.told["site"])
        shutil.copy(site, lab / "site" / "pve.yaml")
        people = lab / "directory.csv"
        people.write_text("".join(people.read_text().splitlines(keepends=True)[:3]))  # two will do
        image = lab / "images" / "directory.yaml"
        image.write_text(image.read_text().replace("ldap.school.example.org ", f"{ADDRESS} "))
        node = NodeShell.of(site, place)
        with directory(node) as servers:
            prepare(node, servers)
            yield School(place, person, cluster, node)


def prepare(node: NodeShell, servers: Path) -> None:
    """What an administrator does on every node, and on the file server."""
    node.run("cat >/run/ca.pem", (servers / "ca.pem").read_bytes())
    node.run("umask 077; cat >/run/bind.password", f"{BIND_PASSWORD}\n".encode())
    node.run("cat >/run/prepare-node.sh", (HOOKS / "prepare-node.sh").read_bytes())
    words = "--ca /run/ca.pem --bind-password /run/bind.password --homes /mnt/pve/homes"
    for _ in range(2):  # it may be repeated
        assert "ready for directory logins" in node.run(f"sh /run/prepare-node.sh {words}")
    for login, uid in UIDS.items():
        home = f"/mnt/pve/homes/{login}"
        node.run(f"mkdir -p {home}; chown {uid}:{uid} {home}; chmod 700 {home}")


@pytest.mark.root
@pytest.mark.timeout(900)
def test_students_log_in_with_their_directory_password_to_their_own_machine(school):
    school.person.types("students", "apply", "directory.csv", "--yes")

    said = school.enters(
        "alice", "vm-alice", "id -u; pwd; echo hers > note; cat /proc/self/uid_map"
    )
    assert said.split()[:2] == ["600000001", "/home/alice"]
    # Her home is the file server's, and what she writes there is hers there too.
    owner = "cat /mnt/pve/homes/alice/note; stat -c %u:%a /mnt/pve/homes/alice/note"
    assert school.node.run(owner).split() == ["hers", "600000001:644"]
    # It is a container in a user namespace: its root is nobody on the node.
    assert ["0", "100000", "65536"] in [line.split() for line in said.splitlines()]

    assert "600000002" in school.enters("bob", "vm-bob", "id -u")
    assert "admins" in school.enters("admin", "vm-alice", "id -Gn")

    assert school.refused("alice", "vm-alice", password="wrong-one")
    assert school.refused("bob", "vm-alice", password=PASSWORDS["bob"])
    assert school.refused("alice", "vm-bob", password=PASSWORDS["alice"])
    assert school.refused("root", "vm-alice", password=PASSWORDS["admin"])

    # The node's own way in.
    assert school.inside("vm-alice", "id -u; hostname") == "0\nvm-alice\n"

    # A key opens one's own machine, and nobody else's, even where it is put on that.
    key = school.place / "alice"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    put = "mkdir -p /etc/ssh/authorized_keys.d; echo $0 >/etc/ssh/authorized_keys.d/alice"
    for login in ("alice", "bob"):
        school.person.types("run", f"directory/{login}", "--", "sh", "-c", put, public)
    assert school.ssh("alice", "vm-alice", "cat note", "-i", str(key)) == (0, "hers\n")
    assert school.refused("alice", "vm-bob", "-i", str(key))


@in_test_all
@pytest.mark.root
@pytest.mark.timeout(1800)
def test_a_container_whose_hooks_fail_does_not_start_and_says_why(school):
    """A home whose owner is not mapped; mended, with StartTLS; then another authority."""
    lab, node = school.person.checkout, school.node
    image = lab / "images" / "directory.yaml"
    image.write_text(image.read_text().replace("ldaps://", "ldap://"))
    told = (lab / "directory.yaml").read_text().replace("name: directory", "name: second")
    told = told.replace("10.60.", "10.62.").replace("prefix: vm-", "prefix: tls-")
    (lab / "second.yaml").write_text(told)
    rows = "login,name,group,uid,home\nbob,Bob,a,600000002,/home/bob\n"
    (lab / "second.csv").write_text(rows)
    node.run("chown 1234:1234 /mnt/pve/homes/bob")
    said = school.person.types("students", "apply", "second.csv", "--yes", code=None, within=600)
    assert "startup for container" in said
    assert "/home/bob belongs to uid 65534, not to 600000002" in school.task_logs()

    node.run("chown 600000002:600000002 /mnt/pve/homes/bob")
    school.person.types("students", "retry", "second", within=600)
    assert "600000002" in school.enters("bob", "tls-bob", "id -u")
    assert school.refused("alice", "tls-bob", password=PASSWORDS["alice"])

    other = school.place / "other"
    other.mkdir()
    make_certificates(other)
    prepare(node, other)
    log = "touch /var/log/sssd/sssd_school.log; grep -ci tls /var/log/sssd/sssd_school.log; :"
    before = int(school.inside("tls-bob", log))
    school.person.types("students", "stop", "second", within=600)
    school.person.types("students", "start", "second", within=600)
    # Whom SSSD does not remember makes it connect; it tells of a server that it cannot verify.
    ask = f"getent passwd somebody; {log}"
    daemons.wait("a refused certificate", lambda: int(school.inside("tls-bob", ask)) > before)
    assert school.refused("bob", "tls-bob", password=PASSWORDS["bob"])
