"""What the commands print is pasted as it is: machines join with it, people get in with it."""

from __future__ import annotations

import json
import os
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
    person = Person(lab.place / "admin", url, at=inside)
    password = Path(found(r"delete it then:\n +(\S+)", said)).read_text().strip()
    person.does("login", "admin", "--server", url, "--insecure", ESSAIM_PASSWORD=password)
    assert "ESSAIM_TOKEN" not in said  # anybody could listen to http
    refused = person.does("nodes", "enrol", "--uses", "2", code=1)
    assert "--insecure-http where nobody can listen" in refused
    line = person.gets("nodes", "enrol", "--uses", "2", "--insecure-http")["line"]
    for machine in lab.machines:
        # Without systemd the agent stays in the foreground.
        pasted = f"({line}) >/root/log 2>&1 </dev/null & sleep 0"
        lab.root(machine, pasted)

    def ready() -> bool:
        return [node["state"] for node in person.gets("nodes")] == ["ready"] * 2

    wait_for(ready, "both machines are ready")
    return person


@pytest.fixture(scope="module")
def ada(lab, inside, admin):
    person = Person(lab.place / "home of ada", admin.server, at=inside)
    code = admin.gets("users", "invite")["code"]
    person.does("signup", "ada", "--server", admin.server, "--insecure", "--invite", code)
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
    three = paste(ada, lines[1].replace(".2@", ".3@"), "true")
    assert three.returncode == 255
    assert "has 2 machines: there is no machine 3" in three.stderr
    ada.does("release", lease["id"])
    wait_for(lambda: not ada.gets("leases"), "the lease is over")
    over = paste(ada, lines[0], "true")
    assert over.returncode == 255
    assert "you released it" in over.stderr
    stranger = ada.client / "stranger"
    paste(ada, "ssh-keygen -q -t ed25519 -N '' -f", str(stranger))
    key = str(ada.client / "id_ed25519")
    assert "Permission denied" in paste(ada, lines[0].replace(key, str(stranger)), "true").stderr


def test_files_go_in_and_out_by_every_name(lab, ada, tmp_path):
    """With `essaim cp`, and with programs that know nothing of Essaim, by the names it installs."""
    ada.does("ssh-config", "--install")
    lease = ada.gets("rent", "-n", "2", "--for", "2h")["id"]
    data = tmp_path / "a folder"
    data.mkdir()
    (data / "été -rf").write_bytes(os.urandom(300_000))
    (data / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (data / "run.sh").chmod(0o750)

    ada.does("cp", str(data), f"{lease}:")
    ada.does("cp", f"{lease}:a folder/*", f"{lease}.2:")
    assert ada.does("ssh", f"{lease}.2", "--", "./run.sh").strip() == "ran"
    ada.does("cp", f"{lease}.2:été -rf", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (data / "été -rf").read_bytes()
    assert "/root/x: permission denied" in ada.does("cp", f"{lease}:/root/x", str(tmp_path), code=1)
    some = ada.does("cp", f"{lease}:run.none", f"{lease}.2:run.sh", str(tmp_path), code=4)
    assert f"{lease}:run.none: no such file" in some

    config = ada.home / ".ssh" / "config"
    ssh = shlex.join(["ssh", "-F", str(config)])
    far = shlex.quote(f"{lease}.2:")
    for line in (
        f"{ssh} {lease}.2 true",
        f"scp -q -F {shlex.quote(str(config))} -r {shlex.quote(str(data))} {far}scp",
        f"rsync -a -e {shlex.quote(ssh)} {shlex.quote(str(data))}/ {far}rsync/",
        f"rsync -a -e {shlex.quote(ssh)} {far}rsync/ {shlex.quote(str(tmp_path / 'rsync'))}",
    ):
        done = paste(ada, line)
        assert done.returncode == 0, f"{line}\n{done.stderr}"

    # The gateway was elsewhere when the lease was rented: the server says where it is now.
    kept = ada.client / "leases" / f"{lease}.json"
    before = json.loads(kept.read_text())
    kept.write_text(json.dumps({**before, "port": 1}))
    assert ada.does("ssh", lease, "--", "echo", "moved") == "moved\n"
    assert json.loads(kept.read_text()) == before
    sftp = f"sftp -q -F {shlex.quote(str(config))} -b {tmp_path}/batch {lease}"
    (tmp_path / "batch").write_text(f'get "a folder/run.sh" {tmp_path}/sftp\n')
    assert paste(ada, sftp).returncode == 0
    for copy in (tmp_path / "rsync" / "run.sh", tmp_path / "sftp"):
        assert copy.read_text() == (data / "run.sh").read_text()
    assert (tmp_path / "rsync" / "run.sh").stat().st_mode & 0o777 == 0o750
    ada.does("release", lease)
    wait_for(lambda: not ada.gets("leases"), "the lease is over")
    assert "you released it" in ada.does("cp", f"{lease}:run.sh", str(tmp_path), code=1)
    ada.does("ssh-config", "--uninstall")
    assert config.read_text() == ""


def test_the_warning_of_a_lease_that_ends_is_a_command_that_works(ada):
    lease = ada.gets("rent", "--for", "5m")["id"]
    told = []

    def warned() -> bool:
        events = [json.loads(line) for line in ada.does("events", "--json").splitlines()]
        told[:] = [each for each in events if each["kind"] == "lease.warning"]
        return bool(told)

    wait_for(warned, "the owner is warned")
    before = ada.gets("leases", lease)["expires_at"]
    for line in told[-1]["text"].splitlines():
        words = shlex.split(line[line.index("essaim extend") :])
        ada.does(*words[1:])
    assert ada.gets("leases", lease)["expires_at"] > before
    ada.does("release", lease)
