"""The way to a server: what OpenSSH is told, and the program that hands it connections."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from essaim.drivers.libvirt import dial, ssh
from essaim.drivers.libvirt.settings import read
from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.model.stacks import Site
from servers.daemons import refusing_port

SETTINGS = read(
    Site(
        name="rhodey",
        driver="libvirt",
        settings={
            "uri": "qemu+ssh://alice@rhodey:2222/session",
            "host_key": "ssh-ed25519 AAAA",
            "key": "~/some key",
        },
    )
)


@pytest.fixture
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("s")


def effective(folder: Path, host: str) -> dict[str, str]:
    """What OpenSSH itself makes of the configuration."""
    done = subprocess.run(dial.ssh(folder, "-G", host), capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_openssh_accepts_only_the_pinned_key_and_asks_nobody(state):
    folder = ssh.lay_out(SETTINGS, state)
    said = effective(folder, "rhodey")
    assert said["stricthostkeychecking"] == "true"
    assert said["userknownhostsfile"] == str(folder / "known_hosts")
    assert said["globalknownhostsfile"] == "/dev/null"
    assert said["batchmode"] == "yes"
    assert said["identityfile"] == str(Path("~/some key").expanduser())
    assert (said["user"], said["port"], said["forwardagent"]) == ("alice", "2222", "no")
    assert (folder / "known_hosts").read_text() == "essaim-server ssh-ed25519 AAAA\n"


def test_hosts_on_the_way_are_the_users_own_business(state):
    said = effective(ssh.lay_out(SETTINGS, state), "jump.example.org")
    assert "hostkeyalias" not in said
    assert said["user"] != "alice"


def test_it_is_for_its_owner_only_and_stays_as_it_is(state):
    folder = ssh.lay_out(SETTINGS, state)
    before = {path: path.stat().st_ino for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o077 for path in before} == dict.fromkeys(
        (path.name for path in before), 0
    )
    assert ssh.lay_out(SETTINGS, state) == folder
    assert {path: path.stat().st_ino for path in folder.iterdir()} == before


def test_another_server_has_another_folder(state):
    other = replace(SETTINGS, host="other")
    assert ssh.lay_out(other, state) != ssh.lay_out(SETTINGS, state)


@pytest.mark.parametrize("odd", ["long" * 40, "with space", "with:colon", "100%d", "quo'te"])
def test_the_state_may_be_anywhere(state, odd):
    folder = ssh.lay_out(SETTINGS, state / odd)
    assert folder.parent == state / odd
    assert effective(folder, "rhodey")["controlpath"] == "/proc/self/cwd/master"
    assert "essaim-server" in (folder / "known_hosts").read_text()
    done = subprocess.run([ssh.wrapper(folder), "-G", "rhodey"], capture_output=True, check=True)
    assert b"hostkeyalias essaim-server" in done.stdout


def test_a_folder_of_others_is_refused(state):
    folder = ssh.lay_out(SETTINGS, state)
    folder.chmod(0o755)
    with pytest.raises(SetupError, match="open to others"):
        ssh.lay_out(SETTINGS, state)


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        ("Host key verification failed.", RejectedError, "pose as the server"),
        ("alice@rhodey: Permission denied (publickey).", RejectedError, "authorized_keys"),
        ("ssh: connect to host rhodey port 22: Connection refused", TransientError, "is it up"),
    ],
)
def test_what_openssh_says_becomes_what_to_do(said, kind, hint):
    error = ssh.explain(SETTINGS, said)
    assert isinstance(error, kind)
    assert hint in error.hint


def test_a_server_that_is_not_there_is_transient(state):
    said = r"rhodey: 127\.0\.0\.1 cannot be reached: .*refused"
    with refusing_port() as port:
        gone = replace(SETTINGS, host="127.0.0.1", port=port)
        with pytest.raises(TransientError, match=said):
            ssh.run(ssh.lay_out(gone, state), gone, ("true",), b"", 120)


class Listener:
    """Somebody who greets."""

    def __init__(self, greeting: bytes) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self._greeting = greeting
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        conn, _ = self.socket.accept()
        with conn:
            conn.sendall(self._greeting)
            conn.recv(1)


class Late:
    """Somebody who is silent to the first callers, hangs up on the next, and greets then."""

    def __init__(self, silent: int, ended: int) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.conns: list[socket.socket] = []
        self._turns = ["silent"] * silent + ["ended"] * ended + ["greeted"] * 9
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for turn in self._turns:
            try:
                conn, _ = self.socket.accept()
            except OSError:  # closed before everybody had come
                return
            if turn == "ended":
                conn.close()
                continue
            self.conns.append(conn)
            if turn == "greeted":
                conn.sendall(b"SSH-")
                return

    def connect(self) -> socket.socket:
        return socket.create_connection(self.socket.getsockname(), 10)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for a caller
        self._thread.join()
        for conn in (self.socket, *self.conns):
            conn.close()


@pytest.mark.parametrize(("silent", "ended"), [(0, 0), (2, 0), (0, 3), (1, 2)])
def test_whoever_speaks_first_is_taken(silent, ended):
    late = Late(silent, ended)
    with contextlib.closing(late):
        with dial.first_to_speak(late.connect, 60, 60) as conn:
            assert conn.recv(64) == b"SSH-"
        # The others were closed: nobody at the other end waits for them.
        assert [conn.recv(1) for conn in late.conns] == [b""] * (silent + 1)


def test_one_that_is_silent_is_given_up_when_time_is_over():
    opened = []

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        opened.append((ours, theirs))
        return ours

    with pytest.raises(TimeoutError, match="silent for"):
        dial.first_to_speak(connect, 1.5)
    # As many as a busy computer had time for: all of them were closed.
    assert opened
    assert [theirs.recv(1) for _, theirs in opened] == [b""] * len(opened)
    for _, theirs in opened:
        theirs.close()


@pytest.mark.parametrize(("seconds", "insist"), [(60, 0), (1, 60)])
def test_one_that_hangs_up_is_given_up_at_last(seconds, insist):
    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()  # at once: one that is slow to hang up is a silent one
        return ours

    with pytest.raises(ConnectionResetError):
        dial.first_to_speak(connect, seconds, insist)


def test_few_connections_are_open_at_once(monkeypatch):
    monkeypatch.setattr(dial, "_NEXT_AFTER", 0.01)
    opened = []

    def connect() -> socket.socket:
        if len(opened) == 7:
            raise OSError("enough")
        ours, theirs = socket.socketpair()
        opened.append((ours, theirs))
        assert sum(one.fileno() >= 0 for one, _ in opened) <= 3
        assert opened[0][0].fileno() >= 0
        return ours

    with pytest.raises(OSError, match="enough"):
        dial.first_to_speak(connect, 280)
    assert [one.fileno() for one, _ in opened] == [-1] * 7
    for pair in opened:
        for each in pair:
            each.close()


def handed_over(*words: str) -> tuple[subprocess.CompletedProcess[bytes], list[int]]:
    """Run the program as OpenSSH does with ProxyUseFdpass."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", dial.__file__, *words]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
        theirs.close()
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        return done, list(fds)


def test_the_program_hands_over_a_connection_with_nothing_read_from_it():
    listener = Listener(b"SSH-2.0-x\r\n")
    done, fds = handed_over("", "", "127.0.0.1", str(listener.port), "lab/m1")
    assert done.returncode == 0, done.stderr
    with listener.socket, socket.socket(fileno=fds[0]) as conn:
        assert conn.recv(64) == b"SSH-2.0-x\r\n"


def test_the_program_says_that_a_machine_is_off():
    with refusing_port() as port:
        for address in ("127.0.0.1", ""):
            done, fds = handed_over("", "", address, str(port), "lab/m1")
            assert (done.returncode, fds) == (1, [])
            assert done.stderr == b"lab/m1 is off\n"


def test_the_program_needs_nothing_but_the_standard_library():
    words = [sys.executable, "-I", "-S", "-c", f"import runpy; runpy.run_path({dial.__file__!r})"]
    subprocess.run(words, check=True, env={"PATH": os.environ["PATH"]})
