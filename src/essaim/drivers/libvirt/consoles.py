"""The serial console of a domain: what it prints now, and what it has printed since its start."""

from __future__ import annotations

import re
import select
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt import line
from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.errors import HeldError, RejectedError, TransientError
from essaim.model.names import MachineName

#: Bytes of a log that are brought here: its end, which is what tells why a boot failed.
MOST = 1 << 20
_PIECE = 1 << 16
_OPEN_WITHIN = 60.0
#: What moves the cursor, paints or rings is of no use in a text.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)


def open_console(connection: Connection, domain: Any, name: MachineName) -> socket.socket:
    """Return a connected stream socket to the console; it ends when the machine is powered off.

    HeldError when somebody else has it open: two who type at once would make nonsense.
    """
    if not domain.isActive():
        raise RejectedError(
            f"{name} is off, so it has no console", hint=f"see what it last said: {_command(name)}"
        )
    ours, theirs = socket.socketpair()
    with theirs:
        words = [
            sys.executable,
            "-P",
            "-m",
            line.__name__,
            connection.uri,
            domain.UUIDString(),
        ]
        program = subprocess.Popen(
            words, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE
        )
    # It ends when the caller closes the socket, or when the machine does.
    threading.Thread(target=program.wait, name=f"console {name}", daemon=True).start()
    said = _said(program)
    if said == "ok":
        return ours
    ours.close()
    if "Active console session" in said:
        raise HeldError(
            f"somebody has the console of {name} open",
            hint=f"ask them to leave it, or read along: {_command(name)}",
        )
    raise TransientError(f"the console of {name} cannot be opened: {said}", hint="try again")


def _said(program: subprocess.Popen[bytes]) -> str:
    """Wait for the program's first words, and listen to no more."""
    assert program.stderr is not None  # noqa: S101 - a pipe was asked for
    with program.stderr as pipe:
        if not select.select([pipe], [], [], _OPEN_WITHIN)[0]:
            program.kill()
            return f"no answer in {_OPEN_WITHIN:.0f} s"
        words = pipe.readline().decode(errors="replace").strip()
        return words if words == "ok" else words + pipe.read().decode(errors="replace").rstrip()


def _command(name: MachineName) -> str:
    return f"essaim console --log {name}"


def read_log(connection: Connection, domain: Any) -> str:
    """What the domain has printed since it was last started, at most the last MiB, as plain text.

    Nothing for a domain that was never started.  RejectedError when none is kept.
    """
    root = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - what libvirt itself wrote
    found = root.find("./devices/serial/log")
    path = found.get("file") if found is not None else None
    if not path:
        raise RejectedError(
            f"{domain.name()} keeps no log of its console",
            hint="only machines made by Essaim do; an adopted one may have a live console",
        )
    return plain(_fetch(connection, path))


def plain(raw: bytes) -> str:
    """Console output as lines of text, without what only a terminal understands."""
    text = raw.decode(errors="replace").replace("\r\n", "\n")
    return _ESCAPES.sub("", text)


def _fetch(connection: Connection, path: str) -> bytes:
    done = connection.ssh("tail", "-c", str(MOST), "--", path)
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip()
    if "No such file" in said:
        return b""
    # A system's libvirtd keeps its logs to itself, but hands out what lies in one of its pools.
    try:
        return _download(connection.get(), path)
    except libvirt.libvirtError as error:
        raise TransientError(
            f"site {connection.settings.site}: the log {path} cannot be read: {said}",
            hint="ask whoever runs the server to let you read it",
        ) from error


def _download(conn: Any, path: str) -> bytes:
    for pool in conn.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE):
        with suppress(libvirt.libvirtError):  # one that is busy is as fresh as it can be
            pool.refresh(0)
    volume = conn.storageVolLookupByPath(path)
    size = volume.info()[1]
    skip = max(0, size - MOST)
    stream = conn.newStream(0)
    volume.download(stream, skip, size - skip, 0)
    got = bytearray()
    while piece := stream.recv(_PIECE):
        got += piece
    stream.finish()
    return bytes(got)
