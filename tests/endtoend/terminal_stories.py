"""What a person sees at a terminal in every phase of a stack's life, whoever the person is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from endtoend.people import Person
from endtoend.traces import machine_pid
from terminal import COLUMNS, CTRL_C, Terminal

GATE = "until test -e /root/go; do sleep 0.1; done"
STOPPING = "stopping; what is under way is finished first"


@dataclass(frozen=True)
class Lab:
    """A place for stacks of one person."""

    person: Person
    place: Path
    image: str = "base"

    def stack(self, name: str, do: str = "", *, count: int = 1, more: str = "") -> str:
        """A stack of some machines whose only role does this."""
        home = self.place / name
        (home / "roles" / "does").mkdir(parents=True, exist_ok=True)
        (home / "stack.yaml").write_text(
            f"defaults: [{{size: tiny}}, {{site: local}}, _self_]\nname: {name}\n"
            f"image: {self.image}\nnodes: {count}\n"
            f'topology: {{n: {{count: "${{nodes}}", roles: [{"does" if do else ""}]}}}}\n'
            f"network: {{cidr: 10.9.0.0/24}}\n{more}"
        )
        run = [{"name": "it", "do": do}] if do else []
        (home / "roles/does/role.yaml").write_text(json.dumps({"vars": {"gate": ""}, "run": run}))
        return str(home)


def sane(seen: Terminal) -> None:
    """Nothing of it is broken: the cursor is back, no traceback, nothing left half drawn."""
    assert not seen.cursor_hidden, seen.raw[-200:]
    assert "Traceback" not in seen.text, seen.text
    assert "━" not in "\n".join(seen.screen), seen.text


def ends(seen: Terminal, code: int) -> None:
    assert seen.ends() == code, seen.text
    sane(seen)


def stops(seen: Terminal) -> None:
    """Press Ctrl-C once, and see that it is noticed."""
    seen.types(CTRL_C)
    seen.waits_for(STOPPING)
    assert not seen.cursor_hidden


# -- composing and planning ---------------------------------------------------------------------


def composing(lab: Lab) -> None:
    """Ctrl-C ends it while the stack is read: one of its secrets is long in coming."""
    stack = lab.stack("reads", "true", more='vars: {does: {gate: !secret "slow"}}\n')
    secrets = Path(stack) / "secrets"
    secrets.mkdir()
    os.mkfifo(secrets / "slow", 0o666)
    (secrets / "slow").chmod(0o666)
    with lab.person.at_terminal("up", stack) as seen, _writer(secrets / "slow", seen):
        seen.types(CTRL_C)
        ends(seen, 130)
    assert "reads" not in lab.person.types("status")


@contextlib.contextmanager
def _writer(fifo: Path, seen: Terminal) -> Iterator[None]:
    """Hold the other end of a pipe from the moment on in which somebody reads it."""
    handles: list[int] = []

    def opened() -> bool:
        with contextlib.suppress(OSError):  # nobody reads it yet
            handles.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return bool(handles)

    seen.waits_for(opened)
    # Between opening and reading it, Python notices a signal only when the reading has ended.
    seen.waits_for(lambda: _is_read(fifo))
    try:
        yield
    finally:
        os.close(handles[0])


def _is_read(fifo: Path) -> bool:
    """Whether some process waits for what is written to a pipe."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            place = Path("/proc") / pid
            held = [os.readlink(each) for each in (place / "fd").iterdir()]
            if str(fifo) in held and "pipe_read" in (place / "wchan").read_text():
                return True
    return False


# -- image build --------------------------------------------------------------------------------


class Mirror:
    """A Debian mirror that has nothing; while it is `held` it does not even say so."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/debian"
        self.asked = threading.Event()
        self.held = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            while peer.recv(65536):
                self.asked.set()
                self.held.wait(120)
                peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def close(self) -> None:
        self.held.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


def building(lab: Lab) -> None:
    """An image that cannot be built: said; Ctrl-C lets the build end, twice does not wait."""
    for name, presses, code in (("fails", 0, 1), ("stops", 1, 130), ("leaves", 2, 130)):
        mirror = Mirror()
        with contextlib.closing(mirror):
            stack = _unbuildable(lab, name, mirror)
            with lab.person.at_terminal("up", stack) as seen:
                seen.waits_for(mirror.asked.is_set)
                if presses:
                    stops(seen)
                if presses > 1:
                    seen.types(CTRL_C)
                else:
                    mirror.held.set()
                ends(seen, code)
            if presses < 2:
                assert f"✗ {name}:image-{name}:" in seen.text
                assert f"image {name} cannot be built" in seen.text
                assert "the same command" in seen.text
        _wait_for(lambda place=mirror.url: not _running(place), "its programs have ended")


def _unbuildable(lab: Lab, name: str, mirror: Mirror) -> str:
    stack = Path(Lab(lab.person, lab.place, name).stack(name))
    (stack / "images").mkdir()
    (stack / "images" / f"{name}.yaml").write_text(
        f"builder: debian\nsuite: bookworm\nmirror: {mirror.url}\npackages: []\n"
    )
    return str(stack)


def _running(word: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


# -- machine creation ---------------------------------------------------------------------------


@contextlib.contextmanager
def late_sshd(rootfs: Path) -> Iterator[None]:
    """Machines of this image answer only once they are let."""
    sshd, real = rootfs / "usr/sbin/sshd", rootfs / "usr/sbin/sshd.real"
    owner = sshd.stat()
    sshd.rename(real)
    sshd.write_text(f'#!/bin/sh\n{GATE}\nexec /usr/sbin/sshd.real "$@"\n')
    sshd.chmod(0o755)
    os.chown(sshd, owner.st_uid, owner.st_gid)
    try:
        yield
    finally:
        real.rename(sshd)


def creating(lab: Lab) -> None:
    """Machines are made; Ctrl-C lets those under way come up, twice does not wait for them."""
    person = lab.person
    with person.at_terminal("up", lab.stack("boots", count=2)) as seen:
        seen.waits_for(lambda: seen.text.count("waiting for SSH") == 2)
        assert "0 of 2" in seen.text
        assert seen.cursor_hidden
        stops(seen)
        seen.waits_for("· boots/n-1 (raise)")
        seen.types(CTRL_C)
        ends(seen, 130)
    with person.at_terminal("up", lab.stack("comes", "true", count=2)) as seen:
        seen.waits_for(lambda: seen.text.count("waiting for SSH") == 2)
        stops(seen)
        for machine in ("n-1", "n-2"):
            _inside(person, "comes", machine, "touch", "/root/go")
        ends(seen, 130)
        assert "+ comes/n-1 up" in seen.text
    for stack in ("boots", "comes"):
        with person.at_terminal("down", stack, "--yes") as seen:
            ends(seen, 0)


def _inside(person: Person, stack: str, machine: str, *words: str) -> None:
    """Run a program on a machine that does not answer."""
    pid = str(machine_pid(person, stack, machine))
    subprocess.run(["nsenter", "--target", pid, "--user", "--mount", "--", *words], check=True)


# -- roles --------------------------------------------------------------------------------------


def is_configuring(seen: Terminal) -> bool:
    """Whether a change is under way: the plan, which is shown before, has one blank there."""
    return re.search(r"\bconfigure {2,}\S", seen.text) is not None


def configuring(lab: Lab) -> None:
    """A role is applied: Ctrl-C lets its step end, twice leaves at once; others wait for it."""
    person, stack = lab.person, lab.stack("slow", GATE)
    with person.at_terminal("up", stack) as seen:
        seen.waits_for(lambda: is_configuring(seen))
        with person.at_terminal("up", stack) as second:
            second.waits_for("waiting for it")
            second.types(CTRL_C)
            ends(second, 130)
        stops(seen)
        seen.types(CTRL_C)
        ends(seen, 130)
    with person.at_terminal("up", stack) as seen:
        seen.waits_for(lambda: is_configuring(seen))
        stops(seen)
        person.types("run", "slow/n-1", "--", "touch", "/root/go")
        ends(seen, 130)
        assert "slow: stopped; nothing is lost" in seen.text
    with person.at_terminal("up", stack) as seen:
        ends(seen, 0)
    assert "slow: done in" in seen.text
    assert re.search(r"→ (\S*/)?essaim ssh slow/n-1", seen.text), seen.text
    fits(seen)


def failing(lab: Lab) -> None:
    """A role fails: the command, its last ten lines, the log and what to do are on the screen."""
    stack = lab.stack("fails", "seq 1 14 | sed 's/^/line /'; exit 7", count=2)
    with lab.person.at_terminal("up", stack) as seen:
        ends(seen, 4)
    assert "fails: 2 of 4 changes failed" in seen.screen
    assert "role does: step it exited 7" in seen.text
    lines = [line.strip() for line in seen.screen]
    assert "$ does/it: seq 1 14 | sed 's/^/line /'; exit 7" in lines
    assert [line for line in lines if line.startswith("| ")] == [
        f"| line {number}" for number in range(5, 15)
    ]
    assert any(re.match(r"→ (\S*/)?essaim logs fails/n-", line) for line in lines)
    assert any(line.startswith("the same on 1 more: fails/n-") for line in lines)
    assert "→ mend what failed; the same command goes on from there" in lines
    fits(seen)
    lab.person.types("down", "fails", "--yes")


def fits(seen: Terminal) -> None:
    """No line of text reached the last column: none was wrapped."""
    assert max(len(line) for line in seen.lines) < COLUMNS, seen.text


# -- down ---------------------------------------------------------------------------------------


def removing(lab: Lab) -> None:
    """The question is answered by y alone; Ctrl-C stops it while the site does not answer."""
    person, stack = lab.person, lab.stack("goes", count=2)
    with person.at_terminal("up", stack) as seen:
        ends(seen, 0)
    question = "The disks of removed machines are lost. Go on? [y/N]:"
    for keys, code in ((CTRL_C, 130), ("n\n", 1)):
        with person.at_terminal("down", "goes") as seen:
            seen.waits_for(question)
            seen.types(keys)
            ends(seen, code)
    for presses in (1, 2):
        with person.at_terminal("down", "goes") as seen:
            seen.waits_for(question)
            with _frozen(person, "goes"):
                known = _sockets(seen)
                seen.types("y\n")
                # Those over which it learns of Ctrl-C, and one to a site that does not answer.
                seen.waits_for(lambda: _sockets(seen) >= known + 3)  # noqa: B023 - used here only
                stops(seen)
                if presses > 1:
                    seen.types(CTRL_C)
                    ends(seen, 130)
            # The site answers again.  What was asked for is in the journal by then, and waits.
            ends(seen, 130)
        assert ("goes: stopped; nothing is lost" in seen.text) == (presses == 1)
    with person.at_terminal("down", "goes") as seen:
        seen.waits_for(question)
        assert seen.colour_of("- goes/n-[1-2] (2)") == "red"
        seen.types("y\n")
        ends(seen, 0)
    assert "goes: done in" in seen.text
    fits(seen)


def _sockets(seen: Terminal) -> int:
    handles = Path(f"/proc/{seen.process.pid}/fd")
    return sum(os.readlink(each).startswith("socket:") for each in handles.iterdir())


@contextlib.contextmanager
def _frozen(person: Person, stack: str) -> Iterator[None]:
    """Freeze the keeper of a stack's machines."""
    pids = [int(pid) for pid in _running(str(person.state / "sandbox" / stack))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


# -- rosters and comparisons ----------------------------------------------------------------------


def _roster(lab: Lab, *logins: str) -> str:
    home = lab.place / "school"
    home.mkdir(parents=True, exist_ok=True)
    (home / "essaim.yaml").touch()
    (home / "few.yaml").write_text(
        f"size: tiny\nimage: {lab.image}\nnetwork: {{cidr: 10.62.0.0/24}}\n"
    )
    (home / "few.csv").write_text("".join(f"{line}\n" for line in ("login", *logins)))
    return str(home / "few.csv")


def enrolling(lab: Lab) -> None:
    """Machines of a roster are made: Ctrl-C is noticed, twice leaves at once."""
    with lab.person.at_terminal("students", "apply", _roster(lab, "ann", "bob")) as seen:
        seen.waits_for("few: 0 of 2")
        stops(seen)
        seen.types(CTRL_C)
        ends(seen, 130)
    lab.person.types("students", "remove", "few", "--yes")


def roster_shrinks(lab: Lab) -> None:
    """No student's disk is lost without a question or --yes."""
    person, file = lab.person, _roster(lab, "ann", "bob")
    with person.at_terminal("students", "apply", file) as seen:
        ends(seen, 0)
    assert re.search(r"→ (\S*/)?essaim ssh few/ann", seen.text), seen.text
    fits(seen)
    less = ("students", "apply", _roster(lab, "ann"), "--grace", "0")
    assert "say --yes" in person.types(*less, code=2)
    for keys, code in ((CTRL_C, 130), ("n\n", 1)):
        with person.at_terminal(*less) as seen:
            seen.waits_for("The disks of these machines are lost. Go on? [y/N]:")
            assert seen.colour_of("- 1 to destroy") == "red"
            seen.types(keys)
            ends(seen, code)
    assert person.types("run", "few/bob", "--", "hostname").strip() == "bob"
    person.types(*less, "--yes")
    assert "few/bob" not in person.types("status", "few")
    person.types("students", "remove", "few", "--yes")


# -- nobody to ask --------------------------------------------------------------------------------


def nobody_to_ask(lab: Lab) -> None:
    """Machines are not removed without a question or --yes, also where nobody can be asked."""
    person, stack = lab.person, lab.stack("keeps", count=2)
    person.types("up", stack)
    refused = person.types("up", stack, "nodes=1", code=2)
    assert "nobody here to ask: say --yes" in refused
    plan = json.loads(person.types("plan", stack, "nodes=1", "--json"))
    assert "say --yes" in person.types("up", "--plan", plan["id"], code=2)
    assert "say --yes" in person.types("down", "keeps", code=2)
    found = json.loads(person.types("status", "keeps", "--json"))[0]["machines"]
    assert {machine["power"] for machine in found} == {"on"}
    assert len(found) == 2
    person.types("up", "--plan", plan["id"], "--yes")
    person.types("down", "keeps", "--yes")


def _wait_for(condition: Callable[[], bool], what: str, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in {within:.0f} s"
        time.sleep(0.05)


@contextlib.contextmanager
def own_image(cache: Path, digest: str) -> Iterator[Path]:
    """A cache with one image of another, whose files may be changed."""
    place = cache.with_name(f"{cache.name}-{os.getpid()}")
    shutil.rmtree(place, ignore_errors=True)
    try:
        (place / "images").mkdir(parents=True)
        subprocess.run(["cp", "-al", cache / "images" / digest, place / "images"], check=True)
        yield place
    finally:
        shutil.rmtree(place)
