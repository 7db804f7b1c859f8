"""`doctor --site`, `inventory`, `adopt`, `snapshot` and `console`: their words and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from essaim.bootstrap import App
from essaim.cli import main
from essaim.config.compose import compose
from essaim.config.serial import stack_to_json


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A control plane that knows a stack of sandbox machines, none of them made."""
    home = tmp_path_factory.mktemp("home")
    (home / "stack.yaml").write_text("name: lab\nimage: base\ntopology: {one: {count: 1}}\n")
    (home / "site").mkdir()
    (home / "site" / "rhodey.yaml").write_text("driver: libvirt\nuri: qemu+ssh://a@b/session\n")
    composed = compose(str(home))
    app = App({"ESSAIM_HOME": str(home / "state")})
    app.stacks.put_stack("lab", {"stack": stack_to_json(composed.stack), "lab": str(home)})
    app.close()
    return home


@pytest.fixture
def essaim(home, monkeypatch, capsys):
    """Type a command there, in this process: to start another for each would take minutes."""
    monkeypatch.setenv("ESSAIM_HOME", str(home / "state"))
    monkeypatch.chdir(home)

    def types(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["essaim", *words])
        code: object = 0
        with Path(os.devnull).open() as nobody:
            monkeypatch.setattr(sys, "stdin", nobody)
            try:
                main()
            except SystemExit as end:
                code = end.code
        said = capsys.readouterr()
        return Done(int(str(code or 0)), said.out, said.err)

    return types


def test_the_doctor_of_a_site_says_what_it_found_there(essaim):
    done = essaim("doctor", "--site", "local", "--json")
    found = json.loads(done.stdout)
    assert {"site", "unshare"} <= {check["name"] for check in found}
    assert all(set(check) == {"name", "ok", "text", "warn"} for check in found)
    assert done.returncode == (0 if all(check["ok"] for check in found) else 3)


def test_the_doctor_names_the_line_that_is_wrong_in_the_sites_file(essaim):
    done = essaim("doctor", "--site", "rhodey")
    assert done.returncode == 2
    assert "site/rhodey.yaml:1: site.host_key is missing" in done.stderr
    assert "ssh-keyscan" in done.stderr


def test_the_doctor_connects_and_says_that_nothing_listens(essaim, home):
    """Settings alone prove nothing: exit code 3, and no word of machines that can be made."""
    (home / "token").write_text("secret")
    (home / "token").chmod(0o600)
    (home / "site" / "pve.yaml").write_text(
        "driver: proxmox\nurl: https://127.0.0.1:9\ntoken: ada@pve!plane\nsecret: {file: token}\n"
        f"fingerprint: {'ab' * 32}\nids: 50000-50999\n"
    )
    done = essaim("doctor", "--site", "pve")
    assert done.returncode == 3
    assert "NO  server" in done.stdout
    assert "site pve cannot be reached: https://127.0.0.1:9: connection refused" in done.stdout
    assert "1 of 2 to be put right" in done.stderr


def test_a_stack_on_a_site_that_is_away_is_refused_in_one_sentence(essaim, home):
    (home / "images").mkdir(exist_ok=True)
    (home / "images" / "gui.yaml").write_text("builder: template\ntemplate: debian-gui\n")
    for verb in ("plan", "up"):
        done = essaim(verb, ".", "site=pve", "name=far", "image=gui")
        assert done.returncode == 3, done.stderr
        assert done.stderr.count("site pve cannot be reached") == 1
        assert "essaim doctor --site pve" in done.stderr


def test_a_stack_on_a_lost_site_is_forgotten_when_asked(essaim, home):
    composed = compose(str(home), ("site=pve", "name=far", "image=gui"))
    app = App({"ESSAIM_HOME": str(home / "state")})
    app.stacks.put_stack("far", {"stack": stack_to_json(composed.stack), "lab": str(home)})
    app.reservations.reserve("pve", "vmid", "far/one-1", [50007])
    app.reservations.reserve("pve", "vmid", "other/one", [50008])
    done = essaim("down", "far", "--yes")
    assert done.returncode == 3
    assert "for what never comes back: essaim down far --forget" in done.stderr
    assert essaim("down", "far", "--forget").returncode == 2, "nobody to ask"
    assert app.stacks.get_stack("far")
    done = essaim("down", "far", "--forget", "--yes")
    assert done.returncode == 0, done.stderr
    assert "vmid 50007" in done.stderr
    assert app.stacks.get_stack("far") is None
    assert app.reservations.held("pve", "vmid") == {50008: "other/one"}
    app.close()


@pytest.mark.parametrize(("answer", "gone"), [("n", False), ("oui", True)])
def test_a_question_in_french_is_answered_in_french(essaim, home, answer, gone):
    """On a terminal: `o` and `oui` are a yes."""
    with contextlib.closing(App({"ESSAIM_HOME": str(home / "state")})) as app:
        composed = compose(str(home), ("site=pve", "name=far", "image=gui"))
        app.stacks.put_stack("far", {"stack": stack_to_json(composed.stack), "lab": str(home)})
        near, far = pty.openpty()
        env = {
            **os.environ,
            "LANG": "fr_FR.UTF-8",
            "LC_ALL": "",
            "ESSAIM_HOME": str(home / "state"),
        }
        words = [sys.executable, "-P", "-c", "from essaim.cli import main; main()"]
        with subprocess.Popen(
            [*words, "down", "far", "--forget"], env=env, stdin=far, stdout=far,
            stderr=subprocess.PIPE, text=True, cwd=home,
        ) as process:  # fmt: skip
            os.close(far)
            os.write(near, f"{answer}\n".encode())
            said = process.communicate(timeout=120)[1]
        os.close(near)
        assert "Continuer ? [o/N]" in said
        assert (app.stacks.get_stack("far") is None) == gone, said
        assert process.returncode == (0 if gone else 1)
        assert gone or "rien n'a été fait" in said
        app.stacks.drop_stack("far")


def test_the_doctor_of_this_computer_is_as_it_was(essaim):
    done = essaim("doctor", "--json")
    names = [check["name"] for check in json.loads(done.stdout)]
    assert names[:5] == ["python", "mmdebstrap", "ssh", "database", "disk"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["doctor", "--site", "rhody"], 2, "rhodey"),
        (["inventory", "--site", "rhody"], 2, "rhodey"),
        (["inventory"], 2, "--site"),
        (["inventory", "--site", "local"], 1, "sandbox knows no machines but its own"),
        (["adopt", "local", "x", "lab/one-1"], 1, "sandbox knows no machines but its own"),
        (["adopt", "local", "x", "one"], 2, "STACK/MACHINE"),
        (["adopt", "local", "x"], 2, "STACK/MACHINE"),
        (["console", "lab/one-1"], 1, "essaim ssh lab/one-1"),
        (["console", "--log", "lab/one-1"], 1, "sandbox machines have none"),
        (["console", "lab/two"], 2, "no machine two"),
        (["console", "lab/one-1", "--json"], 2, "--log"),
        (["snapshot", "make", "lab/one-1"], 1, "sandbox machines keep no snapshots"),
        (["snapshot", "list", "lab/one-1"], 1, "sandbox machines keep no snapshots"),
        (["snapshot", "list", "nothing/one"], 2, "no stack called nothing"),
        (["snapshot", "restore", "lab/one-1", "x"], 2, "--yes"),
        (["snapshot", "restore", "lab/one-1", "x", "--yes"], 1, "keep no snapshots"),
        (["snapshot", "restore", "lab/one-1"], 2, "LABEL"),
        (["snapshot", "drop", "lab/one-1", "x"], 1, "keep no snapshots"),
    ],
)
def test_what_cannot_be_done_is_told(essaim, words, code, said):
    done = essaim(*words)
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["console", "--log"], ["snapshot", "list"]])
def test_errors_are_json_for_programs(essaim, words):
    done = essaim(*words, "lab/one-1", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "rejected"


@pytest.mark.parametrize("command", ["doctor", "console", "inventory", "adopt", "snapshot"])
def test_each_command_shows_how_it_is_typed(command):
    from typer.testing import CliRunner

    from essaim.cli.app import app

    shown = CliRunner().invoke(app, [command, "--help"], prog_name="essaim")
    examples = [line for line in shown.output.splitlines() if f"essaim {command}" in line]
    assert len(examples) > 1, shown.output


CONSOLE = """
import socket, sys, threading
from contextlib import contextmanager
from essaim.cli import console
from essaim.model.names import MachineName
from essaim.usecases import consoles

near, far = socket.socketpair()

@contextmanager
def nothing():
    yield None

def echo():
    far.sendall(b"login: ")
    while piece := far.recv(100):
        far.sendall(b"[" + piece + b"]")
        if b"halt" in piece:
            far.close()
            return

console.control_plane = nothing
consoles.open_console = lambda _app, name: (MachineName.parse(name), near)
threading.Thread(target=echo, daemon=True).start()
console.console("lab/one")
"""


def type_at_console(*keys: bytes) -> tuple[str, int]:
    """Type at a console on a terminal, key after key, each once the one before was answered."""
    terminal, theirs = pty.openpty()
    words = [sys.executable, "-P", "-c", CONSOLE]
    program = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, waiting, deadline = b"", [(b"login: ", keys[0])], time.monotonic() + 60
    waiting += [(b"[" + before + b"]", key) for before, key in pairwise(keys)]
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # so Linux says that the other side has gone
                break
            shown += piece
        if waiting and waiting[0][0] in shown:
            os.write(terminal, waiting.pop(0)[1])
    os.close(terminal)
    return shown.decode(), program.wait(60)


def test_every_key_reaches_the_console_and_one_leaves_it():
    shown, code = type_at_console(b"a", b"\x03", b"\x1a", b"\x1d")
    assert "[a]" in shown
    assert "[\x03]" in shown  # Ctrl-C is the machine's, too
    assert "lab/one: left" in shown
    assert code == 0


def test_a_machine_that_is_powered_off_ends_its_console():
    shown, code = type_at_console(b"halt")
    assert "it was powered off" in shown
    assert code == 0
