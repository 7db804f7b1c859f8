"""The agent against a real HTTP server: R-D1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import asyncssh
import pytest

from agent.worker import until
from essaim.agent import source


class Control:
    """A server that remembers what it was told and answers as it is told to."""

    def __init__(self):
        self.told = []  #: (path, body, authorization)
        self.code = 200
        self.raw = None
        self.interval = 0.2
        self.gateway = {}
        self.again = False  #: say the interval with each answer
        self.name = "the-credential"  #: the credential of whoever registered last
        control = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not self.path.endswith("challenge"):
                    said = (self.path, json.loads(body), self.headers["Authorization"])
                    control.told.append(said)
                code, answer = control.answer(self.path, self.headers["Authorization"])
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def answer(self, path, who):
        if path.endswith("challenge"):
            return 404, b"{}"  # as a server of the first release does
        if self.code != 200:
            return self.code, json.dumps({"detail": "the reason"}).encode()
        if self.raw is not None:
            return 200, self.raw
        if path.endswith("register"):
            given = {
                "node_id": "n-1",
                "credential": self.name,
                "server_public_key": "ssh-ed25519 AAAA server",
                "gateway": self.gateway,
                "interval": self.interval,
            }
            return 200, json.dumps(given).encode()
        if who != f"Bearer {self.name}":
            return 401, json.dumps({"detail": "another one has joined"}).encode()
        interval = {"interval": self.interval} if self.again else {}
        return 200, json.dumps({"commands": [], **interval}).encode()

    @property
    def beats(self):
        return [body for path, body, _ in self.told if path == "/api/workers/heartbeat"]

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def control():
    one = Control()
    yield one
    one.close()


@contextlib.contextmanager
def ssh_server(kind=asyncssh.SSHServer):
    """An SSH server in a thread of its own: its port and key.  All of it is closed at the end."""
    loop = asyncio.new_event_loop()
    key = asyncssh.generate_private_key("ssh-ed25519")
    connections = []

    class Server(kind):
        def connection_made(self, conn):
            connections.append(conn)

    server = loop.run_until_complete(
        asyncssh.create_server(Server, "127.0.0.1", 0, server_host_keys=[key])
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def end():
        server.close()
        await server.wait_closed()
        for each in connections:
            each.abort()
            await each.wait_closed()

    try:
        yield server.get_port(), " ".join(key.export_public_key().decode().split()[:2])
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def sshd():
    """Something with a host key; only its banner and key exchange are needed."""
    with ssh_server() as made:
        yield made


@pytest.fixture
def agent(tmp_path, control, sshd):
    """Run the agent as its own process; all are ended after the test."""
    program = tmp_path / "agent.py"
    program.write_text(source())
    started = []

    def run(*words, wait=True, stdin=""):
        # The agent must run on older ones too: name one to try it.
        python = os.environ.get("ESSAIM_TEST_AGENT_PYTHON", sys.executable)
        command = [python, "-I", program, *words, "--state", tmp_path / "state"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        process.stdin.write(stdin)
        process.stdin.close()
        process.stdin = None
        if not wait:
            return process
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        process.stdout.close()


def join(control, sshd, *more):
    port, _ = sshd
    return ("join", "--server", control.address, "--token", "secret", "--port", str(port), *more)


def test_it_registers_then_beats(agent, control, sshd, tmp_path):
    process = agent(
        *join(control, sshd, "--name", "me", "--site", "lab", "--label", "gpu=a=b"), wait=False
    )
    until(lambda: len(control.beats) >= 4)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.endswith("stopped\n")
    path, told, who = control.told[0]
    assert (path, who) == ("/api/workers/register", None)
    wanted = {"token": "secret", "name": "me", "site": "lab", "labels": {"gpu": "a=b"}}
    wanted |= {"address": "127.0.0.1", "port": sshd[0], "host_key": sshd[1], "tunnel": False}
    assert wanted.items() <= told.items()
    assert told["cores"] >= 1
    assert told["memory"] > 100
    assert {who for path, _, who in control.told[1:]} == {"Bearer the-credential"}
    numbers = [beat["seq"] for beat in control.beats]
    assert numbers == sorted(set(numbers))
    assert {"load", "accounts", "boot_id"} <= control.beats[0].keys()
    state = tmp_path / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "node.json").stat().st_mode & 0o777 == 0o600
    assert (state / ".ssh/authorized_keys").read_text() == "ssh-ed25519 AAAA server\n"
    assert "secret" not in (state / "node.json").read_text()
    # The next life goes on as the same node, and its numbers go on growing.
    before = len(control.told)
    process = agent("run", wait=False)
    until(lambda: len(control.told) >= before + 2)
    assert all(path.endswith("heartbeat") for path, _, _ in control.told[before:])
    numbers = [beat["seq"] for beat in control.beats]
    assert numbers == sorted(set(numbers))
    assert "node n-1 of http" in agent("status")[1]


def test_a_server_in_trouble_is_tried_again(agent, control, sshd):
    agent(*join(control, sshd, "--no-run"))
    control.code = 503
    process = agent("run", wait=False)
    until(lambda: len(control.beats) >= 3)
    control.code, control.raw = 200, b"no json"
    seen = len(control.beats)
    until(lambda: len(control.beats) >= seen + 1)
    control.raw = None
    seen = len(control.beats)
    until(lambda: len(control.beats) >= seen + 2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert "answers 503: the reason; trying again in" in said
    assert "answers again after" in said
    assert process.returncode == 0


def test_a_revoked_credential_stops_it(agent, control, sshd):
    agent(*join(control, sshd, "--no-run"))
    control.code = 401
    code, said = agent("run")
    assert code == 3
    assert "refuses us: the reason.  This agent stops: join again with a new token" in said
    assert len(control.beats) == 1
    assert "failed: " in agent("status")[1]


def test_a_redirect_is_not_followed(agent, control, sshd):
    control.code = 302
    code, said = agent(*join(control, sshd))
    assert code == 1
    assert "answers 302" in said
    assert [path for path, _, _ in control.told] == ["/api/workers/register"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run"], "has not joined a fleet"),
        (["join", "--server", "http://192.0.2.1", "--token", "x"], "in the clear: use https"),
        (["join", "--server", "ftp://x", "--token", "x"], "is not a server: say https"),
        (["join", "--server", "http://127.0.0.1:1"], "joining takes a token"),
        (["join", "--server", "https://x", "--token", "x", "--ca", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(agent, words, sentence):
    code, said = agent(*words)
    assert code in (1, 3)
    assert sentence in said
    assert "Traceback" not in said


def test_where_no_ssh_server_runs_or_ran_it_says_what_to_install(monkeypatch, tmp_path):
    from essaim.agent import identity

    # A computer that has one, even if it does not run, has left its keys in /etc/ssh.
    monkeypatch.setattr(identity, "Path", lambda path: tmp_path / path.lstrip("/"))
    with pytest.raises(identity.Trouble, match=r"no SSH server answers on port 1 .*openssh-server"):
        identity.host_key_of(1)


def test_a_token_may_come_from_standard_input(agent, control, sshd):
    words = ["-" if word == "secret" else word for word in join(control, sshd, "--no-run")]
    assert agent(*words, stdin="quiet\n")[0] == 0
    assert control.told[0][1]["token"] == "quiet"


def test_the_server_may_ask_for_another_interval(agent, control, sshd, tmp_path):
    control.interval = 3000.0
    agent(*join(control, sshd, "--no-run"))
    control.interval, control.again = 0.1, True
    process = agent("run", wait=False)
    # With the first interval, the second beat would not come in our lifetime.
    until(lambda: len(control.beats) >= 3)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert said.count("wants a beat every 0.1 s from now on") == 1
    assert json.loads((tmp_path / "state/node.json").read_text())["interval"] == 3000.0


def test_of_two_agents_with_one_identity_the_former_stops(agent, control, sshd):
    """The server gives the second one a new credential and refuses the first: R-D1."""
    control.name = "first"
    former = agent(*join(control, sshd), wait=False)
    until(lambda: control.beats)
    control.name = "second"
    agent(*join(control, sshd, "--no-run"))
    said, _ = former.communicate(timeout=60)
    assert former.returncode == 3
    assert "This agent stops: join again with a new token" in said
    # It did not take over the other's credential, which is in the same place here.
    later = agent("run", wait=False)
    seen = len(control.beats)
    until(lambda: len(control.beats) >= seen + 2)
    assert control.told[-1][2] == "Bearer second"
    later.kill()


def test_a_beat_is_never_sent_twice(agent, control, sshd):
    """Also when nobody answered: the server refuses a number it has seen.  R-D1."""
    agent(*join(control, sshd, "--no-run"))
    control.code = 409
    process = agent("run", wait=False)
    until(lambda: len(control.beats) >= 3)
    control.code = 200
    seen = len(control.beats)
    until(lambda: len(control.beats) >= seen + 2)
    process.kill()
    process.wait()
    agent("run", wait=False)
    seen = len(control.beats)
    until(lambda: len(control.beats) >= seen + 2)
    numbers = [beat["seq"] for beat in control.beats]
    assert numbers == sorted(set(numbers))
    assert len({beat["boot_id"] for beat in control.beats}) == 1


def test_only_a_verified_server_is_believed(agent, control, sshd, tmp_path):
    words = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "1"]
    words += ["-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*words, "-keyout", tmp_path / "key", "-out", tmp_path / "cert"],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    control.server.socket = context.wrap_socket(control.server.socket, server_side=True)
    secure = [word.replace("http://", "https://") for word in join(control, sshd, "--no-run")]
    code, said = agent(*secure)
    assert (code, control.told) == (1, [])
    assert "does not trust (self-signed certificate): name its authority with --ca" in said
    assert agent(*secure, "--ca", str(tmp_path / "cert"))[0] == 0
    os.unlink(tmp_path / "cert")
    process = agent("run", wait=False)
    until(lambda: control.beats)
    process.terminate()


def test_the_tunnel_is_kept(agent, control, sshd):
    seen = []

    class Nothing(asyncssh.SSHListener):
        """Answers that the forward is there; opens no port of its own."""

        def get_port(self):
            return 22

        def close(self):
            pass

        async def wait_closed(self):
            pass

    class Gateway(asyncssh.SSHServer):
        def begin_auth(self, username):
            seen.append(username)
            return True

        def public_key_auth_supported(self):
            return True

        def validate_public_key(self, username, key):
            told = next(body for path, body, _ in control.told if path.endswith("register"))
            return " ".join(key.export_public_key().decode().split()[:2]) == told["tunnel_key"]

        def server_requested(self, listen_host, listen_port):
            seen.append((listen_host, listen_port))
            return Nothing()

    with ssh_server(Gateway) as (port, host_key):
        control.gateway = {"host": "127.0.0.1", "port": port, "host_key": host_key}
        process = agent(*join(control, sshd, "--tunnel"), wait=False)
        until(lambda: len(seen) >= 2)
        assert seen[:2] == ["node-n-1", ("localhost", 0)]
        assert "address" not in control.told[0][1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_server_that_is_not_there(agent, sshd, control):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        words = [address if word == control.address else word for word in join(control, sshd)]
        code, said = agent(*words)
    assert code == 1
    assert "does not answer: " in said
