"""Whatever keeps a machine from joining is said in a sentence: real agent, machine and server.

R-D1.
"""

from __future__ import annotations

import functools
import os
import ssl
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.worker import Worker, worker
from essaim.agent import source
from essaim.bootstrap import App
from essaim.cli.joining import join_line
from essaim.cli.plane import ApiServer
from essaim.usecases.credentials import digest, new_token
from essaim.usecases.keys import CONTROL, same_keys

pytestmark = pytest.mark.root
GATEWAY = ("10.66.0.1", 2222)
SERVER = "http://10.66.0.1:8080"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine that has never joined anything, on which the agent's file is."""
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path_factory.mktemp("joining")) as box:
        box.put("/tmp/agent.py", source().encode())
        yield box


@pytest.fixture(scope="module")
def plane(machine, tmp_path_factory):
    """A real control plane on the machine's network."""
    app = App({"ESSAIM_HOME": str(tmp_path_factory.mktemp("plane"))})
    same_keys(app, CONTROL)  # as a controller does
    api = ApiServer(app, [machine.driver.listen("fleet", 8080)], gateway=GATEWAY)
    api.start()
    yield app
    api.stop()
    app.close()


@pytest.fixture
def join(machine):
    """Join as root would by hand; gives exit code and what was said, always a sentence."""

    def one(*words: str, token: str = "enrol_x", become: str = "") -> tuple[int, str]:
        script = f'ESSAIM_TOKEN={token} {become} python3 -I /tmp/agent.py join --no-run "$@"'
        done = machine.sh(script, *words, ok=False)
        assert "Traceback" not in done.output
        return done.exit_code, done.output

    yield one
    machine.sh("test ! -e /usr/local/lib/essaim || python3 -I /tmp/agent.py uninstall", ok=False)


def enrolment(app: App, uses: int = 1) -> str:
    token = new_token("enrol")
    app.fleet.enrol(digest(token), uses=uses, seconds=600)
    return token


def test_a_token_that_is_wrong_or_used_up(plane, join):
    words = ("--server", SERVER, "--insecure")
    code, said = join(*words, token="enrol_wrong")
    refused = (
        f"agent.py: {SERVER} refuses us: this enrolment token is unknown, used up or over; ask an "
        "administrator for a new one\n"
    )
    assert (code, said.endswith(refused)) == (3, True)
    token = enrolment(plane)
    code, said = join(*words, token=token)
    assert code == 0
    assert f"joined {SERVER} as n-" in said
    code, said = join(*words, token=token)
    assert (code, said.endswith(refused)) == (3, True)
    assert join(*words, token="")[0] == 1


def test_another_servers_fleet_is_not_left_unasked(plane, join):
    assert join("--server", SERVER, "--insecure", token=enrolment(plane))[0] == 0
    code, said = join("--server", "http://10.66.0.1:8088", "--insecure")
    assert code == 3
    assert f"this machine has joined {SERVER} already, as n-" in said
    assert "--again joins this one instead" in said
    code, said = join("--server", "http://10.66.0.1:8088", "--insecure", "--again")
    assert code == 1
    assert "http://10.66.0.1:8088 does not answer: Connection refused" in said
    # Joining the same fleet once more is nothing special.
    assert join("--server", SERVER, "--insecure", token=enrolment(plane))[0] == 0


def test_a_server_that_is_away(join):
    code, said = join("--server", "http://10.66.0.1:9", "--insecure")
    assert code == 1
    assert said.endswith("agent.py: http://10.66.0.1:9 does not answer: Connection refused\n")
    code, said = join("--server", "http://127.0.0.1:9")
    assert code == 1
    assert "does not answer: Connection refused; this address is the machine itself" in said


def test_whoever_is_not_root(machine, join):
    code, said = join("--server", SERVER, "--insecure", become="runuser -u nobody --")
    assert code == 1
    assert said == (
        "agent.py: join changes the machine and needs root: sudo python3 agent.py join\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--server", "lab"], "lab is not a server: say https://NAME or https://NAME:PORT"),
        (["--server", "http://["], "http://[ is not a server"),
        (["--server", "https://lab:port"], "https://lab:port is not a server"),
        (["--server", SERVER], "would carry the credential in the clear: use https"),
        (["--server", SERVER, "--ca", "/none"], "--ca /none cannot be read: No such file"),
        (["--server", SERVER, "--ca", "/bin/true"], "--ca /bin/true is not a PEM file"),
        (["--server", "https://10.66.0.1", "--ca", "/etc/hosts"], "holds no certificates"),
    ],
)
def test_words_that_make_no_sense(machine, join, words, sentence):
    code, said = join(*words)
    assert code == 1
    assert sentence in said
    machine.sh("test ! -e /etc/sudoers.d/essaim")  # nothing was installed


class Greeter(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@contextmanager
def secure(box: Worker, folder, address: IPv4Address, since: int, days: int):
    """An HTTPS server on the machine's network, with a certificate of its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=since))
        .not_valid_after(now + timedelta(days=since + days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "both.pem").write_bytes(secret + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    box.put("/root/ca.pem", pem)
    listener = box.driver.listen("fleet", 8443)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Greeter, bind_and_activate=False)
    server.socket.close()
    server.socket = context.wrap_socket(listener, server_side=True)
    thread = threading.Thread(target=functools.partial(server.serve_forever, 0.05))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CA = ("--ca", "/root/ca.pem")
CERTIFICATES = {
    "a stranger's": (1, -1, (), "does not trust (self-signed certificate): name its authority"),
    "another's": (9, -1, CA, "of another name (IP address mismatch"),
    "too new": (1, 5, CA, "not valid now (certificate is not yet valid): this machine's clock"),
    "too old": (1, -9, CA, "not valid now (certificate has expired): this machine's clock"),
    "the right one": (1, -1, CA, "https://10.66.0.1:8443 answers 404"),
}


@pytest.mark.parametrize("which", CERTIFICATES)
def test_a_certificate_that_does_not_do(machine, join, tmp_path, which):
    number, since, words, sentence = CERTIFICATES[which]
    with secure(machine, tmp_path, IPv4Address(f"10.66.0.{number}"), since, days=3):
        code, said = join("--server", "https://10.66.0.1:8443", *words)
    assert code == 1
    assert sentence in said


def test_a_server_that_speaks_no_tls(plane, join):
    code, said = join("--server", "https://10.66.0.1:8080")
    assert code == 1
    assert "does not speak TLS as this machine does (wrong version number)" in said


def test_the_printed_line_says_in_a_sentence_that_nobody_is_there(machine):
    done = machine.sh(join_line("http://127.0.0.1:8080", "enrol_x", "0" * 64), ok=False)
    assert done.exit_code == 1
    assert done.output == "cannot fetch agent.py: [Errno 111] Connection refused\n"


def test_what_it_kept_is_damaged(machine, plane, join):
    assert join("--server", SERVER, "--insecure", token=enrolment(plane))[0] == 0
    for text in ("", "[]", '{"id": "n-1"}'):
        machine.put("/var/lib/essaim/node.json", text.encode())
        done = machine.sh("python3 -I /usr/local/lib/essaim/agent.py run", ok=False)
        assert done.exit_code == 3
        assert "agent.py: /var/lib/essaim/node.json" in done.output
        assert "Traceback" not in done.output
