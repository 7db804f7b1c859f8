"""A student gets into their own machine, and into nobody else's: on sandboxes and on Proxmox."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.person import Person as Client
from endtoend.people import OURS, Person
from endtoend.school_rig import lab_proxmox
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.names import MachineName
from testcache import CACHE

PATIENCE = 120
#: What sshd answers whom it does not know.
DENIED = "Permission denied (publickey)"


def new_key(path: Path) -> str:
    """Make a pair of keys; gives the public one."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True)
    return path.with_name(f"{path.name}.pub").read_text().strip()


def ssh(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ssh", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@dataclass
class School:
    """An operator with a roster, and students at computers of their own."""

    place: Path
    operator: Person
    server: str = ""
    gateway: str = ""  #: its port
    students: dict[str, Client] = field(default_factory=dict)

    def applies(self, rows: str, settings: str) -> str:
        lab = self.operator.checkout
        (lab / "few.csv").write_text(rows)
        (lab / "few.yaml").write_text(settings)
        return self.operator.types("students", "apply", "few.csv", "--yes", within=PATIENCE)

    @contextlib.contextmanager
    def serves(self) -> Iterator[None]:
        process = self.operator.begins("serve", "--port", "0", "--gateway-port", "0")
        try:
            told = "".join(iter(process.stdout.readline, "ready    Ctrl-C ends it\n"))
            self.server = re.search(r"API +(\S+)", told)[1]
            self.gateway = re.search(r"gateway +ssh LEASE@\S+ -p ([0-9]+)", told)[1]
            yield
        finally:
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said

    def joins(self, *logins: str) -> None:
        """Students sign up with their codes, which give them their machines."""
        codes = self.operator.types("students", "invite", "few", "--csv")
        for login in logins:
            student = Client(self.place / f"home-{login}", self.server)
            code = re.search(rf"^{login},.*,(\S+)$", codes, re.MULTILINE)[1]
            student.does("signup", login, "--server", self.server, "--invite", code)
            self.students[login] = student

    def through(self, name: str, key: Path, port: str = "") -> subprocess.CompletedProcess[str]:
        """Plain ssh to the gateway, as `name`, with a key."""
        return ssh(
            "-p", port or self.gateway, "-i", str(key), "-o", "StrictHostKeyChecking=no",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
            f"{name}@127.0.0.1", "id", "-un",
        )  # fmt: skip

    def directly(self, login: str, key: Path) -> subprocess.CompletedProcess[str]:
        """Plain ssh to a sandbox machine itself, past the gateway."""
        driver = Sandbox(self.operator.state / "sandbox", lambda _image: Path())
        proxy = subprocess.list2cmdline(driver.proxy_command(MachineName("few", login)))
        return ssh(
            "-i", str(key), "-o", f"ProxyCommand={proxy}", "-o", "ProxyUseFdpass=yes",
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-o", "LogLevel=ERROR", f"{login}@machine", "id", "-un",
        )  # fmt: skip


@pytest.fixture
def school(tmp_path):
    lab = tmp_path / "lab"
    (lab / "site").mkdir(parents=True)
    home = tmp_path / "operator"
    home.mkdir()
    extra = {"ESSAIM_CACHE": str(CACHE)}
    made = School(tmp_path, Person(home, lab, OURS, extra=extra))
    yield made
    made.operator.types("students", "remove", "few", "--yes", code=None, within=PATIENCE)


def denied(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 255 and DENIED in done.stderr


@pytest.mark.timeout(600)
def test_a_student_gets_into_their_own_sandbox_and_into_nobody_elses(school, tmp_path):
    carols = tmp_path / "carol"
    key = new_key(carols)
    school.applies(
        f"login,name,uid,home,key\nalice,Alice,2001,/home/students/alice,\nbob,Bob,,,\n"
        f"ca.rol,Carol,,,{key}\n",
        "site: local\nsize: tiny\nnetwork: {cidr: 10.61.0.0/24}\n",
    )
    with school.serves():
        school.joins("alice", "bob")
        own = log_in(school)
        # Whose key the roster names needs nothing else; their login has a dot.
        assert school.through("few.ca.rol", carols).stdout == "ca.rol\n"
        assert denied(school.through("few.alice", carols))
        copy_files(school)
        new = change_key(school, own["alice"])
        stop_and_reset(school, new)
        use_another_gateway(school, new, own["bob"])
        retire(school, new)
        assert school.directly("bob", own["bob"]).stdout == "bob\n"


def log_in(school: School) -> dict[str, Path]:
    """Each into their own, with the usual key, which is made and sent the first time."""
    alice, bob = school.students["alice"], school.students["bob"]
    assert alice.does("mine", "ssh", "--", "id").startswith("uid=2001(alice) ")
    assert alice.does("mine", "ssh", "--", "pwd; exit 0").strip() == "/home/students/alice"
    assert alice.types("mine", "ssh", "--", "exit 7").returncode == 7
    assert bob.does("mine", "ssh", "--", "id", "-un").strip() == "bob"
    own = {name: each.client / "id_ed25519" for name, each in school.students.items()}
    assert school.through("few.alice", own["alice"]).stdout == "alice\n"
    assert school.directly("alice", own["alice"]).stdout == "alice\n"
    assert "not yours to see" in bob.does("mine", "ssh", "few/alice", "--", "id", code=2)
    assert denied(school.through("few.alice", own["bob"]))
    assert denied(school.directly("alice", own["bob"]))
    assert denied(school.through("few.nobody", own["alice"]))
    return own


def copy_files(school: School) -> None:
    """There and back, and not from somebody else's machine."""
    alice, bob = school.students["alice"], school.students["bob"]
    (alice.home / "thesis").mkdir()
    (alice.home / "thesis" / "one.txt").write_text("chapter one\n")
    alice.does("mine", "cp", str(alice.home / "thesis"), ":")
    alice.does("mine", "cp", ":thesis/one.txt", str(alice.home / "back.txt"))
    assert (alice.home / "back.txt").read_text() == "chapter one\n"
    assert "not yours to see" in bob.does("mine", "cp", "few/alice:thesis", ".", code=2)


def change_key(school: School, old: Path) -> Path:
    """Another key: the one before opens nothing any more."""
    new, alice = school.place / "new", school.students["alice"]
    new_key(new)
    assert "SHA256:" in alice.types("mine", "key", str(new)).stderr
    assert denied(school.through("few.alice", old))
    assert denied(school.directly("alice", old))
    assert school.directly("alice", new).stdout == "alice\n"
    assert alice.does("mine", "ssh", "--", "id", "-un").strip() == "alice"
    return new


def stop_and_reset(school: School, key: Path) -> None:
    """One that is off says so to whoever has its key; made anew, it lets the same student in."""
    alice = school.students["alice"]
    alice.does("mine", "stop")
    assert "few/alice is stopped: essaim mine start" in alice.does("mine", "ssh", code=1)
    assert "est éteinte" in alice.does("mine", "ssh", code=1, LANG="fr_FR.UTF-8")
    stopped = school.through("few.alice", key)
    assert "your machine is stopped: essaim mine start" in stopped.stderr
    assert "votre machine est éteinte : essaim mine start" in stopped.stderr
    alice.does("mine", "start")
    alice.does("mine", "reset", "--yes")
    assert alice.does("mine", "ssh", "--", "id").startswith("uid=2001(alice) ")


def use_another_gateway(school: School, key: Path, bobs: Path) -> None:
    """The gateway as a process of its own leads to the same machines."""
    gateway = school.operator.begins("gateway", "--port", "0")
    try:
        port = re.search(r"ready: \S+ port ([0-9]+)", gateway.stdout.readline())[1]
        assert school.through("few.alice", key, port).stdout == "alice\n"
        assert denied(school.through("few.alice", bobs, port))
    finally:
        gateway.terminate()
        gateway.communicate(timeout=PATIENCE)


def retire(school: School, key: Path) -> None:
    """No entry, not even when somebody turns the machine on by hand."""
    school.operator.types("students", "retire", "few", "alice", "--yes", within=PATIENCE)
    assert denied(school.through("few.alice", key))
    school.students["alice"].does("mine", "ssh", code=1)
    driver = Sandbox(school.operator.state / "sandbox", lambda _image: Path())
    driver.start(MachineName("few", "alice"))
    assert denied(school.directly("alice", key))


@pytest.mark.timeout(600)
@pytest.mark.root
def test_a_student_gets_into_their_own_container_on_proxmox(school):
    with lab_proxmox(school.operator, "--speed", "50", "--port", "0", "--real") as cluster:
        site = Path(cluster.told["site"]).read_text()
        (school.operator.checkout / "site" / "pve.yaml").write_text(site)
        school.applies(
            "login,name,uid\nalice,Alice,2001\nbob,Bob,\n",
            "site: pve\nimage: debian-gui\nsize: tiny\nnetwork: {cidr: 10.62.0.0/24}\n",
        )
        with school.serves():
            school.joins("alice", "bob")
            alice, bob = school.students["alice"], school.students["bob"]
            assert alice.does("mine", "ssh", "--", "id").startswith("uid=2001(alice) ")
            bob.does("mine", "ssh", "few/alice", "--", "id", code=2)
            bob.does("mine", "key")
            assert denied(school.through("few.alice", bob.client / "id_ed25519"))
            (alice.home / "one.txt").write_text("one\n")
            alice.does("mine", "cp", str(alice.home / "one.txt"), ":")
            assert alice.does("mine", "ssh", "--", "cat", "one.txt") == "one\n"
            alice.does("mine", "reset", "--yes")
            assert alice.does("mine", "ssh", "--", "id").startswith("uid=2001(alice) ")
        school.operator.types("students", "remove", "few", "--yes", within=PATIENCE)
