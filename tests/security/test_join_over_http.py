"""Who stands between a machine and its server gets nothing run, installed or told."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.worker import Worker, worker
from api.rig import world
from cli.person import Person
from databases import find
from deploy.caddy import Caddy
from essaim.agent import source
from essaim.bootstrap import App
from essaim.cli.joining import check_clear
from essaim.cli.plane import ApiServer, listening
from essaim.model.errors import RejectedError
from essaim.model.fleet import Role
from essaim.remote.host_signatures import is_signed
from essaim.usecases.credentials import hash_password
from essaim.usecases.keys import CONTROL, same_keys

PASSWORD = "several words that nobody guesses"
#: What a machine has that the agent was installed on, or that ran what it should not have.
TRACES = "ls -d /usr/local/lib/essaim /etc/sudoers.d/essaim /var/lib/essaim /root/owned 2>/dev/null"
RELAY = """
import asyncio, sys

async def carry(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def answer(reader, writer):
    far = await asyncio.open_connection("10.66.0.1", int(sys.argv[1]))
    await asyncio.gather(carry(reader, far[1]), carry(far[0], writer), return_exceptions=True)

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
"""


def test_a_line_for_plain_http_is_printed_only_where_that_was_said():
    for server in ("http://192.0.2.1:8080", "http://lab.example.org"):
        with pytest.raises(RejectedError, match="in the clear") as refused:
            check_clear(server, allowed=False)
        assert "--insecure-http" in refused.value.hint
        assert check_clear(server, allowed=True) == ["--insecure-http"]
    for server in ("https://lab.example.org", "http://127.0.0.1:8080"):
        assert check_clear(server, allowed=False) == []


def test_an_agent_that_was_changed_is_not_run(new_database, tmp_path):
    served = ["import sys\n"]
    with world(new_database("sqlite"), agent=lambda: served[0]) as made:
        made.plane.people.add("admin", hash_password(PASSWORD), role=Role.ADMIN)
        server = str(made.client.base_url).rstrip("/")
        admin = Person(tmp_path / "admin", server)
        admin.does("login", "admin", "--server", server, ESSAIM_PASSWORD=PASSWORD)
        line = admin.gets("nodes", "enrol")["line"]
        proof = tmp_path / "run-as-root"
        good = subprocess.run(["sh", "-c", line], check=False, capture_output=True, cwd=tmp_path)
        assert good.returncode == 0, good.stderr
        served[0] = f"open({str(proof)!r}, 'w')\n"
        done = subprocess.run(["sh", "-c", line], check=False, capture_output=True, cwd=tmp_path)
    assert done.returncode == 1
    assert b"agent.py was changed on the way" in done.stderr
    assert b"nothing was run" in done.stderr
    assert not proof.exists()


class Between:
    """Passes a machine's connections on: to the server, or to whoever stands in between."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener, self.port = listener, port
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self.port)) as far:
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far)
            back.join()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def impostor(folder: Path, ca: bytes, agent: bytes) -> Iterator[int]:
    """Somebody with a certificate of their own who gives out these; the port."""
    words = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    )
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    folder.mkdir()
    subprocess.run(["openssl", *words.split(), *files], cwd=folder, check=True, capture_output=True)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            body = ca if self.path == "/ca.pem" else agent
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            heard.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_error(401)

        def log_message(self, *_):
            pass

    heard: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert heard == []  # nobody told them the token


@contextlib.contextmanager
def caddy(folder: Path, upstream: str) -> Iterator[Caddy]:
    """A Caddy with an authority of its own."""
    folder.mkdir()
    made = Caddy(folder)
    try:
        made.start([upstream])
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A machine, a server behind Caddy, and what stands between; its administrator's line."""
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    find("caddy", "caddy")
    place = tmp_path_factory.mktemp("between")
    app = App({"ESSAIM_HOME": str(place / "plane")})
    same_keys(app, CONTROL)  # as a controller does when it starts
    app.people.add("admin", hash_password(PASSWORD), role=Role.ADMIN)
    api_socket = listening("127.0.0.1", 0)
    upstream = f"127.0.0.1:{api_socket.getsockname()[1]}"
    api = ApiServer(app, [api_socket], gateway=("10.66.0.1", 2222))
    api.start()
    with contextlib.ExitStack() as stack:
        stack.callback(app.close)
        stack.callback(api.stop)
        real = stack.enter_context(caddy(place / "real", upstream))
        other = stack.enter_context(caddy(place / "other", upstream))
        box = stack.enter_context(worker(place / "machines"))
        between = Between(box.driver.listen("fleet", real._port), real._port)
        stack.callback(between._listener.close)
        # The server's name, which is the same for the machine, leads to whoever stands between.
        box.put("/tmp/relay.py", RELAY.encode())
        quiet = "</dev/null >/tmp/relay.log 2>&1 &"
        box.sh(f"setsid python3 /tmp/relay.py {real._port} {quiet}")
        url = f"https://localhost:{real._port}"
        admin = Person(place / "admin", url)
        words = ("--server", url, "--ca", str(real._root))
        admin.does("login", "admin", *words, ESSAIM_PASSWORD=PASSWORD)

        def line() -> str:
            return admin.gets("nodes", "enrol", "--for", "1h")["line"]

        yield Lab(app=app, box=box, between=between, line=line, real=real, other=other)


@dataclass(kw_only=True)
class Lab:
    app: App
    box: Worker
    between: Between
    line: Callable[[], str]
    real: Caddy
    other: Caddy

    def paste(self, line: str) -> tuple[int, str]:
        """Paste the line on the machine, by the plainest shell; gives the code and what it said."""
        done = self.box.sh(f"dash -c {shlex.quote(line + ' --no-run')}", ok=False)
        assert "Traceback" not in done.output
        return done.exit_code, done.output

    def untouched(self) -> None:
        assert self.box.sh(TRACES, ok=False).stdout == ""
        assert self.app.fleet.list() == []


@pytest.mark.root
def test_an_impostor_with_an_authority_of_their_own(lab):
    line = lab.line()
    assert "--ca-pin sha256:" in line.replace("\\\n  ", "")
    assert all(len(each) < 100 for each in line.splitlines())
    lab.between.port = lab.other._port
    code, said = lab.paste(line)
    assert code == 3
    assert "is not the certificate authority that this machine was told to trust" in said
    lab.untouched()


@pytest.mark.root
def test_an_impostor_who_shows_the_right_authority_and_another_certificate(lab, tmp_path):
    agent = source().encode()
    with impostor(tmp_path / "keys", lab.real._root.read_bytes(), agent) as port:
        lab.between.port = port
        code, said = lab.paste(lab.line())
    assert code == 1
    assert "shows a certificate that this machine does not trust" in said
    lab.untouched()


@pytest.mark.root
def test_an_impostor_who_gives_out_another_agent(lab, tmp_path):
    agent = b"open('/root/owned', 'w')\n"
    with impostor(tmp_path / "keys", lab.real._root.read_bytes(), agent) as port:
        lab.between.port = port
        code, said = lab.paste(lab.line())
    assert code == 1
    assert "agent.py was changed on the way" in said
    lab.untouched()


@pytest.mark.root
def test_the_machine_joins_by_the_line_through_caddy_s_own_authority_and_signs(lab):
    lab.between.port = lab.real._port
    # No program but Python fetches anything.
    lab.box.sh("command -v curl wget && exit 1; :")
    code, said = lab.paste(lab.line())
    assert code == 0, said
    (node,) = lab.app.fleet.list()
    assert f"as {node.id}" in said
    # What it was given is lost: its host key lets it in again, as the same machine.
    lab.box.sh("python3 -I /usr/local/lib/essaim/agent.py uninstall")
    code, said = lab.paste(lab.line())
    assert code == 0, said
    assert [each.id for each in lab.app.fleet.list()] == [node.id]
    # The helper signs what servers ask for, and nothing else.
    asked = {"challenge": "challenge_" + "x" * 43, "host_key": node.host_key}
    lab.box.sh(
        'install -d -m 700 -o essaim -g essaim /var/lib/essaim/.ssh; echo "$1" '
        ">/var/lib/essaim/.ssh/authorized_keys; chown -R essaim: /var/lib/essaim/.ssh",
        lab.box.keyring.user_public_key(),
    )
    assert is_signed(asked["challenge"], lab.box.helper("sign", asked)["signature"], node.host_key)
    answer = lab.box.helper("sign", {**asked, "challenge": "a letter"})
    assert not answer["ok"]
    assert "this is none" in answer["error"]
