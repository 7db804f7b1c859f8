"""Which accelerator a server's machines run with: KVM only where it was seen to carry a whole boot.

That the account may open /dev/kvm proves little: on a server that is itself a virtual machine a
guest may start, print its firmware's greeting, and hang in its kernel.  So the very image that is
to be used is booted once under KVM, from a copy that is thrown away and without any network, until
its kernel has handed over to the first program.  The proof is what the console says, or that the
disk was written to, which no boot loader does.  The verdict is remembered for that server, kernel,
emulator and image.  A guest that hangs later than that, or at times, is not found out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.consoles import open_console, plain
from essaim.drivers.libvirt.definition import Facts, Hardware, build
from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.names import MachineName

KVM, TCG, AUTO = "kvm", "tcg", "auto"
#: Seconds of a core that a trial boot may use: one that KVM carries needs five.  On a busy server
#: they take longer to come by, but no trial lasts longer than the second number.
PROVEN_WITHIN = (20.0, 90.0)
#: Seconds for which a verdict against KVM counts: what was wrong may have been put right.
DOUBTED_FOR = 7 * 24 * 3600.0
#: Seconds from power-on to the first answer for a machine that has a core to itself.
ANSWERS = {KVM: 60.0, TCG: 300.0}
#: A server with more machines than cores is waited for longer, up to so many times.
_MOST_PATIENCE = 4.0
_MEBIBYTES = 512
#: Where libvirt puts them in what it says of a disk, and of a domain.
_WRITES, _CPU_TIME = 2, 4
#: Words of the first program, or of the kernel when it starts it.
_MARKS = re.compile(
    r"login:|Run \S+ as init process|systemd\[1\]|Welcome to |cloud-init\[|dropbear|Reached target"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What machines run with, and why."""

    accelerator: str
    why: str
    at: float = 0.0  #: seconds since 1970 when it was proven; 0 when nothing had to be


class Accelerators:
    """Decides for one server.  Any number of threads and processes may ask at once."""

    def __init__(self, connection: Connection, state: Path) -> None:
        self._connection = connection
        self._state = state
        self._lock = threading.Lock()
        self._known: dict[str, Verdict] = {}

    def choose(self, base: str, digest: str) -> Verdict:
        """Decide for an image whose base is at that path on the server.

        The first time this may take half a minute, and uses half a GiB there for so long.
        """
        settled = self.settled()
        if settled is not None:
            return settled
        with self._lock:
            if digest not in self._known:
                self._known[digest] = self._judged(base, digest)
            return self._known[digest]

    def settled(self) -> Verdict | None:
        """Give the verdict that is the same for every image; None when each must be tried."""
        wanted = self._connection.settings.accelerator
        if wanted != AUTO:
            return Verdict(wanted, "the site says so")
        missing = kvm_missing(self._connection.get())
        return Verdict(TCG, missing) if missing else None

    def remembered(self) -> list[Verdict]:
        """List what was proven at this site, latest last."""
        files = self._state.glob(f"accelerator-{self._connection.settings.site}-*.json")
        return sorted(filter(None, map(_read, files)), key=lambda one: one.at)

    def answers_within(self) -> float:
        """Seconds from power-on to a first answer: by accelerator, more when cores are shared."""
        settled = self.settled()
        verdicts = [settled] if settled else self.remembered()
        # Where nothing is known yet the slower of the two is waited for.
        fast = bool(verdicts) and all(one.accelerator == KVM for one in verdicts)
        conn = self._connection.get()
        with self._connection.doing("counting its machines"):
            shared = float(conn.numOfDomains() / conn.getInfo()[2])
        return ANSWERS[KVM if fast else TCG] * min(max(1.0, shared), _MOST_PATIENCE)

    def _judged(self, base: str, digest: str) -> Verdict:
        file = self._file(digest)
        with _alone(file.with_suffix(".lock")):
            before = _read(file)
            if before and (before.accelerator == KVM or time.time() - before.at < DOUBTED_FOR):
                return before
            why = hangs(self._connection, base)
            verdict = Verdict(TCG if why else KVM, why or "a trial boot succeeded", time.time())
            draft = file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(asdict(verdict)))
            draft.rename(file)
            return verdict

    def _file(self, digest: str) -> Path:
        conn, settings = self._connection.get(), self._connection.settings
        with self._connection.doing("asking what it is"):
            host = ET.fromstring(conn.getCapabilities()).findtext("./host/uuid", "")  # noqa: S314 - what libvirt itself wrote
            emulator = conn.getVersion()
        kernel = self._connection.ssh("uname", "-r").stdout.decode(errors="replace").strip()
        key = json.dumps([settings.uri, host, emulator, kernel, digest])
        mark = hashlib.sha256(key.encode()).hexdigest()[:16]
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._state / f"accelerator-{settings.site}-{mark}.json"


def kvm_missing(conn: Any) -> str:
    """Say why the server offers no KVM to this account; nothing when it does."""
    try:
        conn.getDomainCapabilities(None, "x86_64", None, KVM, 0)
    except libvirt.libvirtError as error:
        return f"KVM is not offered there: {error}"
    return ""


def hangs(
    connection: Connection,
    base: str,
    *,
    kind: str = KVM,
    within: tuple[float, float] = PROVEN_WITHIN,
) -> str:
    """Boot an image from a copy that is thrown away; why that does not succeed, or nothing."""
    try:
        domain = trial(connection.get(), describe(kind, base))
    except libvirt.libvirtError as error:
        if error.get_error_domain() == libvirt.VIR_FROM_RPC:
            raise
        return f"a trial boot under {kind} does not start: {error}"
    name = MachineName("canary", domain.name())
    with ended(domain), closing(open_console(connection, domain, name)) as console:
        domain.resume()
        said, began, used = b"", time.monotonic(), 0.0
        while used < within[0] and time.monotonic() - began < within[1]:
            said += listen(console, 0.5)
            if _MARKS.search(plain(said)) or domain.blockStats("vda")[_WRITES] > 0:
                return ""
            used = domain.info()[_CPU_TIME] / 1e9
    last = plain(said).strip().splitlines()[-1:] or ["nothing"]
    return f"a trial boot under {kind} hung: {used:.0f} s of a core, and it said last: {last[0]}"


def trial(conn: Any, description: str) -> Any:
    """Start a domain, halted, that goes with this connection, whatever becomes of us."""
    flags = libvirt.VIR_DOMAIN_START_AUTODESTROY | libvirt.VIR_DOMAIN_START_PAUSED
    return conn.createXML(description, flags)


@contextmanager
def ended(domain: Any) -> Iterator[None]:
    """End a trial domain when its time is over."""
    try:
        yield
    finally:
        with suppress(libvirt.libvirtError):
            domain.destroy()


def listen(console: socket.socket, seconds: float) -> bytes:
    """Read what is printed until it is silent for so long."""
    console.settimeout(seconds)
    try:
        return console.recv(1 << 16)
    except OSError:
        return b""


def describe(kind: str, base: str = "", arguments: Sequence[str] = ()) -> str:
    """The definition of a trial domain: the hardware of any machine, with what is said here only.

    With a base it boots from a copy that is thrown away; without one, its firmware greets.
    """
    facts = Facts(
        plane="", stack="canary", machine=f"trial-{secrets.token_hex(4)}", address="", image="",
        cidr="10.0.0.0/24", port=0, mac=0, accelerator=kind,
    )  # fmt: skip
    hardware = Hardware(cores=1, memory=_MEBIBYTES, disk=base, seed="", log="")
    root = ET.fromstring(build(facts, hardware))  # noqa: S314 - ours
    for tag in ("uuid", "title", "metadata"):
        root.remove(_part(root, tag))
    _part(root, "on_reboot").text = "destroy"
    devices = _part(root, "devices")
    for disk in devices.findall("disk"):
        if base and _part(disk, "target").get("dev") == "vda":
            # As others may be using it, too.
            ET.SubElement(disk, "transient", shareBacking="yes")
        else:
            devices.remove(disk)
    serial = _part(devices, "serial")
    serial.remove(_part(serial, "log"))
    if not base:
        ET.SubElement(_part(root, "os"), "bios", useserial="yes")
    line = next(part for part in root if part.tag.endswith("}commandline"))
    for old in list(line):
        line.remove(old)
    for word in arguments:
        ET.SubElement(line, line.tag.replace("commandline", "arg"), value=word)
    return ET.tostring(root, encoding="unicode")


def _part(of: ET.Element, tag: str) -> ET.Element:
    found = of.find(tag)
    if found is None:
        raise LookupError(tag)
    return found


def _read(file: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Let one process try at a time: the others find its verdict."""
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
