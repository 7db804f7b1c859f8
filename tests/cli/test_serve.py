"""`essaim serve` as it is started: what it says first, and that what it says works."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess

import pytest

from api.rig import wait_for
from cli.person import COMMAND, Person


@pytest.fixture
def start(tmp_path):
    begun = []

    def begin(*more: str, terminal: bool = False) -> tuple[subprocess.Popen[str], list[str]]:
        """A server that listens, and what it said until then."""
        ours, theirs = pty.openpty() if terminal else os.pipe()
        env = {"HOME": str(tmp_path), "ESSAIM_HOME": str(tmp_path / "state")}
        words = [*COMMAND, "serve", "--port", "0", "--gateway-port", "0", *more]
        process = subprocess.Popen(
            words,
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", **env},
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        lines = os.fdopen(ours)
        begun.append((process, lines))
        said = []
        while not said or not said[-1].startswith("ready"):
            said.append(wait_for(lines.readline).rstrip())
        return process, said

    yield begin
    for process, lines in begun:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        lines.close()


def find(pattern: str, said: list[str]) -> str:
    return next(found[1] for line in said if (found := re.search(pattern, line)))


def test_the_first_start_says_how_the_administrator_and_the_machines_get_in(start, tmp_path):
    process, said = start()
    url = find(r"^API +(\S+)", said)
    file = tmp_path / "state" / "admin-password"
    assert any(line.strip() == str(file) for line in said)
    password = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    secret = re.compile(f"{re.escape(password)}|enrol_")
    assert not any(secret.search(line) for line in said), "stderr is no terminal: it may be a log"
    assert find(r"--server (\S+)$", said[-6:]) == url
    assert find(r"^workers +(\S+ \S+ \S+)", said) == "essaim nodes enrol"
    assert max(len(line) for line in said if str(file) not in line) < 80
    admin = Person(tmp_path / "admin", url)
    admin.does("login", "admin", "--server", url, ESSAIM_PASSWORD=password)
    assert admin.gets("whoami")["role"] == "admin"
    assert "ESSAIM_TOKEN=" in admin.does("nodes", "enrol")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process, said = start()
    assert not any("password" in line or "ESSAIM_TOKEN" in line for line in said)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_people_and_machines_are_told_the_public_address(start):
    public = ["--public-url", "https://lab.example.org/", "--public-gateway", "ssh.lab:22"]
    _, said = start(*public, terminal=True)
    assert find(r"^API +(\S+)", said) == "https://lab.example.org"
    assert find(r"^gateway +(.*)", said) == "ssh LEASE@ssh.lab -p 22"
    assert find(r"(agent.py join .*)", said) == "agent.py join --server https://lab.example.org"
    assert find(r"ESSAIM_TOKEN=(\S+)", said).startswith("enrol_")


@pytest.mark.parametrize(
    "words", [["--public-url", "lab"], ["--public-gateway", "a:b"], ["--public-gateway", ":22"]]
)
def test_addresses_that_are_none_are_refused_before_anything_starts(tmp_path, words):
    person = Person(tmp_path / "home")
    assert words[1] in person.does("serve", "--port", "0", *words, code=2)
