"""What goes through the gateway arrives as if there were none.  R-D4."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pty
import signal
import struct
import subprocess
import termios
import time

import pytest

from drivers.lab import PATIENCE
from gateway.rig import ACCOUNT, finish, read_until, run, wait_for


def test_a_command_runs_as_the_account_and_its_streams_stay_apart(fleet):
    done = fleet.ssh("id -un; hostname; echo oops >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (
        7,
        f"{ACCOUNT}\nm1\n".encode(),
        b"oops\n",
    )


def test_input_arrives_with_its_end(fleet):
    body = os.urandom(3_000_000)
    done = fleet.ssh("sha256sum", stdin=body)
    assert done.stdout.split()[0].decode() == hashlib.sha256(body).hexdigest()


def test_output_is_whole_whatever_its_size(fleet):
    done = fleet.ssh("python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256))*20000)'")
    assert done.stdout == bytes(range(256)) * 20000


def test_a_command_ended_by_a_signal_is_reported_so(fleet):
    done = fleet.ssh("kill -TERM $$", flags=["-v"])
    assert done.returncode == 255
    assert b"rtype exit-signal" in done.stderr


def test_the_language_is_passed_and_nothing_else(fleet):
    fleet.root(0, "grep -q ^AcceptEnv /etc/ssh/sshd_config")
    env = ["SendEnv=LANG LC_* EVIL"]
    words = fleet.words("echo $LANG/$LC_TIME/$EVIL", flags=["-o", env[0]])
    given = {**os.environ, "LANG": "fr_FR.UTF-8", "LC_TIME": "C", "EVIL": "1"}
    done = subprocess.run(
        words, env=given, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.stdout == "fr_FR.UTF-8/C/\n"


class Terminal:
    """A person at a terminal."""

    def __init__(self, words, *, rows=24, columns=80):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.seen = b""

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, text):
        end = time.monotonic() + PATIENCE
        os.set_blocking(self.master, False)
        while text.encode() not in self.seen:
            assert time.monotonic() < end, self.seen
            try:
                self.seen += os.read(self.master, 65536)
            except BlockingIOError:
                time.sleep(0.02)
        _, _, self.seen = self.seen.partition(text.encode())

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(fleet):
    with contextlib.ExitStack() as stack:

        def make(**more):
            made = Terminal(fleet.words(flags=["-tt"]), **more)
            stack.callback(made.close)
            return made

        yield make


def test_a_shell_knows_its_terminal_and_follows_its_size(fleet, terminal):
    fleet.book.change(message="welcome to\nthe second machine")
    person = terminal(rows=33, columns=101)
    person.expect("welcome to\r\nthe second machine\r\n")
    person.expect("$ ")
    person.type("echo $TERM; stty size\n")
    person.expect("xterm-256color\r\n33 101")
    person.resize(44, 120)
    # The shell learns of it when it does: ask until it is so.
    person.type("until [ \"$(stty size)\" = '44 120' ]; do sleep 0.05; done; echo re''sized\n")
    person.expect("resized")
    person.type("sleep 1000\n")
    person.expect("sleep 1000")
    wait_for(lambda: "sleep" in fleet.root(0, f"ps -u {ACCOUNT} -o comm="), "sleep runs")
    person.type("\x03")
    person.type("echo code=$?\n")
    person.expect("code=130")
    person.type("exit 5\n")
    assert person.process.wait(PATIENCE) == 5


def test_a_shell_ends_on_the_machine_when_its_client_is_killed(fleet, terminal):
    person = terminal()
    person.expect("$ ")
    person.type("exec sleep 4321\n")
    # With its name: other programs have numbers among their arguments, too.
    wait_for(lambda: "sleep 4321" in fleet.root(0, f"ps -u {ACCOUNT} -o args="), "it runs")
    person.process.kill()
    wait_for(lambda: "sleep 4321" not in fleet.root(0, "ps -e -o args="), "it has ended")


def test_a_command_without_message_is_not_disturbed_by_one(fleet):
    fleet.book.change(message="read this")
    done = fleet.ssh("echo clean")
    assert (done.stdout, done.stderr) == (b"clean\n", b"")


def test_a_signal_reaches_the_command(fleet):
    import asyncio

    import asyncssh

    async def main():
        assert fleet.gateway is not None
        async with asyncssh.connect(
            "127.0.0.1", fleet.gateway.port, username=ACCOUNT, known_hosts=None, config=None,
            client_keys=[str(fleet.client_key)], agent_path=None,
        ) as connection:  # fmt: skip
            process = await connection.create_process("echo ready; exec sleep 1000")
            await process.stdout.readline()
            process.send_signal("TERM")
            done = await process.wait()
            return done.exit_signal[0]

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == "TERM"


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "big").write_bytes(os.urandom(2_000_000))
    (root / "sub" / "empty").touch()
    (root / "sub" / "été").write_text("chaud\n")
    return root


def same(left, right):
    return subprocess.run(["diff", "-r", left, right], check=False).returncode == 0


@pytest.mark.parametrize("protocol", [["-O"], ["-s"]], ids=["old", "new"])
def test_scp_both_ways(fleet, tree, tmp_path, protocol):
    words = ["scp", *protocol, *fleet.options(), "-q", "-r"]
    name = f"copy{protocol[0]}"
    done = run([*words, str(tree), f"{ACCOUNT}@gateway:{name}"])
    assert done.returncode == 0, done.stderr
    done = run([*words, f"{ACCOUNT}@gateway:{name}", str(tmp_path / "back")])
    assert done.returncode == 0, done.stderr
    assert same(tree, tmp_path / "back")


def test_sftp_both_ways(fleet, tree, tmp_path):
    batch = f"put -r {tree} sftp-copy\nget -r sftp-copy {tmp_path}/back\nls -l sftp-copy\n"
    words = ["sftp", *fleet.options(), "-b", "-", f"{ACCOUNT}@gateway"]
    done = run(words, stdin=batch.encode())
    assert done.returncode == 0, done.stderr
    assert same(tree, tmp_path / "back")


def test_rsync_both_ways_and_again(fleet, tree, tmp_path):
    shell = " ".join(["ssh", *fleet.options()])
    words = ["rsync", "-a", "--stats", "-e", shell]
    far = f"{ACCOUNT}@gateway:rsync-copy/"
    assert run([*words, f"{tree}/", far]).returncode == 0
    again = run([*words, f"{tree}/", far])
    assert b"Number of regular files transferred: 0" in again.stdout, again
    assert run([*words, far, f"{tmp_path}/back/"]).returncode == 0
    assert same(tree, tmp_path / "back")


def test_another_subsystem_is_refused(fleet):
    assert fleet.ssh("netconf", flags=["-s"]).returncode != 0


def test_a_command_the_machine_no_longer_runs_says_so(fleet):
    client = fleet.start("echo ready; exec sleep 1000")
    read_until(client, b"ready\n")
    fleet.root(0, f"pkill -KILL -u {ACCOUNT} sshd")
    code, _, err = finish(client)
    assert code == 255
    assert b"essaim: the connection to the machine was lost" in err


def test_sessions_are_recorded_with_their_size_and_not_their_contents(fleet):
    fleet.ssh("head -c 100000 /dev/zero", stdin=b"x" * 5000)
    wait_for(fleet.book.all_closed, "the session is recorded as closed")
    ((name, session),) = fleet.book.sessions.items()
    assert (session.account, session.node, session.client) == (ACCOUNT, "m1", "127.0.0.1")
    assert session.key.startswith("SHA256:")
    assert not session.refused
    assert abs(session.started_at - time.time()) < PATIENCE
    came, went = fleet.book.bytes[name]
    assert went == 100_000
    assert came <= 5000


def test_the_end_of_output_is_told_though_the_command_goes_on(fleet):
    client = fleet.start("echo out; exec >&- 2>&-; read -r code; exit $code")
    assert client.stdout.read() == b"out\n"  # to its end
    assert client.poll() is None
    client.stdin.write(b"7\n")
    client.stdin.flush()
    assert client.wait(PATIENCE) == 7


def test_a_status_is_told_to_clients_that_end_their_input_at_any_moment(fleet):
    # A client that has said and heard that nothing more comes closes, and hears no status then.
    for _ in range(10):
        client = fleet.start("cat; exit 7")
        assert client.communicate(b"in", timeout=PATIENCE) == (b"in", b"")
        assert client.returncode == 7


def test_several_sessions_share_one_connection(fleet, tmp_path):
    # A short path: a socket's is at most 107 bytes long.
    socket = f"/tmp/gw-{os.getpid()}.sock"
    share = {"ControlPath": socket, "ControlMaster": "auto", "ControlPersist": "60"}
    try:
        first = fleet.start("cat", **share)
        wait_for(lambda: os.path.exists(socket), "the master is there")
        more = [fleet.start(f"echo {number}", **share) for number in range(5)]
        assert [finish(one)[1] for one in more] == [f"{n}\n".encode() for n in range(5)]
        assert finish(first) == (0, b"", b"")
        assert len(fleet.book.sessions) == 1
    finally:
        run(["ssh", *fleet.options(**share), "-O", "exit", f"{ACCOUNT}@gateway"])
