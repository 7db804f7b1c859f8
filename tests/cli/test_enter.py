"""What the commands print is pasted as it is: machines join with it, people get in with it."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from cli.person import COMMAND, PATIENCE, Person
from endtoend.fleet_rig import Fleet, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lab():
    place = Path(tempfile.mkdtemp(prefix="essaim-enter-"))
    made = Fleet(place, 1.0)
    try:
        made.raise_machines(2)
        yield made
    finally:
        made.close()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def inside(lab) -> list[str]:
    """Words that bring a command to the network of the machines."""
    return ["nsenter", f"--net=/proc/{lab.pid('')}/ns/net"]


@pytest.fixture(scope="module")
def said(lab, inside):
    """What `essaim serve` said on its first start; it serves until all is seen."""
    words = ["serve", "--host", lab.address, "--port", "0", "--gateway-port", "0"]
    env = {**lab.environ, "ESSAIM_HOME": str(lab.place / "server"), "LANG": "C.UTF-8"}
    with subprocess.Popen(
        [*inside, *COMMAND, *words], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = []
        while not lines or not lines[-1].startswith("ready"):
            line = process.stderr.readline()
            assert line, lines
            lines.append(line.rstrip())
        yield "\n".join(lines)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    assert match, text
    return match[1]


@pytest.fixture(scope="module")
def admin(lab, inside, said):
    """The administrator; every machine has joined with the line that was printed."""
    url = found(r"^API +(\S+)", said)
    line = found(r"(python3 -c .*)", said)
    person = Person(lab.place / "admin", url, at=inside)
    password = found(r"shown only now: (\S+)", said)
    person.does("login", "admin", "--server", url, "--insecure", ESSAIM_PASSWORD=password)
    for machine in lab.machines:
        fetch, join = line.split(" && ")
        # Without systemd the agent stays in the foreground.
        pasted = f"cd /root && {fetch} && {join} >/root/log 2>&1 </dev/null & sleep 0"
        lab.root(machine, pasted)

    def ready() -> bool:
        return [node["state"] for node in person.gets("nodes")] == ["ready"] * 2

    wait_for(ready, "both machines are ready")
    return person


@pytest.fixture(scope="module")
def ada(lab, inside, admin):
    person = Person(lab.place / "home of ada", admin.server, at=inside)
    person.does("signup", "ada", "--server", admin.server, "--insecure")
    return person


def paste(person: Person, line: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [*person.at, *shlex.split(line), *more]
    return subprocess.run(
        words,
        env=person.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_what_rent_prints_leads_to_the_machines_and_their_host_key_is_pinned(lab, ada, admin):
    lines = ada.does("rent", "-n", "2", "--for", "2h").splitlines()  # R-D2 R-D4
    names = set()
    for line in lines:
        done = paste(ada, line, "hostname; id -un")
        assert done.returncode == 0, done.stderr
        name, account = done.stdout.split()
        names.add(name)
        assert account.startswith("l-")
    assert len(names) == 2
    (lease,) = ada.gets("leases")
    short = ada.types("ssh", f"{lease['id']}.2", "--", "echo", "two  words", "$HOME")
    assert short.stdout == "two  words $HOME\n"
    known = ada.client / "known_hosts"
    pinned = known.read_text()
    host, kind, _ = pinned.split()
    other = (ada.client / "id_ed25519.pub").read_text().split()[1]
    known.write_text(f"{host} {kind} {other}\n")
    refused = paste(ada, lines[0], "true")
    assert refused.returncode == 255
    assert "verification failed" in refused.stderr
    known.write_text(pinned)
    assert "hostname" not in ada.does("leases", lease["id"])
    visits = ada.gets("leases", lease["id"])["visits"]
    assert len([visit for visit in visits if not visit["refused"]]) == 3
    ada.does("release", lease["id"])
    wait_for(lambda: not ada.gets("leases"), "the lease is over")
    assert paste(ada, lines[0], "true").returncode == 255
