"""The storage pool of a site and the volumes in it: disks, seeds, logs and small notes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt.connection import Connection, is_missing
from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.errors import RejectedError, TransientError

#: What libvirt sends in one message at most, nearly.
PIECE = 1 << 18
#: In the home of the account on the server.
_USUAL_PATH = ".local/share/essaim/pool"
_LOCKS = 256
_NOTE_LIMIT = 4096
_POOL_GONE = (libvirt.VIR_ERR_NO_STORAGE_POOL, libvirt.VIR_ERR_OPERATION_INVALID)


class Storage:
    """The pool, made and started when first used.  Safe for any number of threads."""

    def __init__(self, connection: Connection, state: Path) -> None:
        self._connection = connection
        self._state = state
        self._lock = threading.Lock()
        self._ready: tuple[Any, Any] = (None, None)

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Let one thread of one process on this computer at a time see to a thing."""
        locks = self._state / "locks"
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4], "big") % _LOCKS
        kind = what.partition(" ")[0]  # locks of two kinds may be held at once, those of one not
        fd = os.open(locks / f"{kind}-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    # The pool

    def pool(self) -> Any:
        """The pool, running."""
        conn = self._connection.get()
        with self._lock:
            if self._ready[0] is not conn:
                self._ready = (conn, self._started(conn))
            return self._ready[1]

    def look(self) -> Any:
        """The pool as it is, without making it; None when it is not there or does not run."""
        conn = self._connection.get()
        if self._ready[0] is conn:
            return self._ready[1]
        try:
            found = conn.storagePoolLookupByName(self._connection.settings.pool)
        except libvirt.libvirtError as error:
            if is_missing(error):
                return None
            raise
        return found if found.isActive() else self.pool()

    def _started(self, conn: Any) -> Any:
        name = self._connection.settings.pool
        with self.alone(f"pool {name}"), self._connection.doing(f"opening the pool {name}"):
            try:
                pool = conn.storagePoolLookupByName(name)
            except libvirt.libvirtError as error:
                if not is_missing(error):
                    raise
                pool = self._defined(conn, name)
            self._check(pool)
            if not pool.isActive():
                with suppress(libvirt.libvirtError):
                    pool.build(0)  # its folder; fails when it is there
                try:
                    pool.create(0)
                except libvirt.libvirtError:
                    if not pool.isActive():  # somebody else was quicker
                        raise
            if not pool.autostart():
                pool.setAutostart(1)
            return pool

    def _defined(self, conn: Any, name: str) -> Any:
        settings = self._connection.settings
        session = settings.mode == "session"
        if not session and not settings.pool_path:
            raise RejectedError(
                f"site {settings.site}: there is no storage pool {name}",
                hint="set `pool` to one that exists there (virsh pool-list), or give it a path",
            )
        root = ET.Element("pool", type="dir")
        ET.SubElement(root, "name").text = name
        target = ET.SubElement(root, "target")
        ET.SubElement(target, "path").text = settings.pool_path or f"{self._home()}/{_USUAL_PATH}"
        if session:
            # The seeds in it hold private keys.
            ET.SubElement(ET.SubElement(target, "permissions"), "mode").text = "0700"
        return conn.storagePoolDefineXML(ET.tostring(root, encoding="unicode"), 0)

    def _home(self) -> str:
        if not self._connection.remote:
            return str(Path.home())
        done = self._connection.ssh("sh", "-c", "cd && pwd -P")
        home = done.stdout.decode(errors="replace").strip()
        if done.returncode or not home.startswith("/"):
            raise RejectedError(
                f"site {self._connection.settings.site}: the account has no home there",
                hint="set pool.path to a folder that it may write to",
            )
        return home

    def _check(self, pool: Any) -> None:
        settings = self._connection.settings
        if not settings.pool_path:
            return
        found = ET.fromstring(pool.XMLDesc(0)).findtext("./target/path", "")  # noqa: S314 - what libvirt itself wrote
        if found.rstrip("/") != settings.pool_path.rstrip("/"):
            raise RejectedError(
                f"site {settings.site}: the pool {settings.pool} is at {found} already",
                hint="leave pool.path away, or choose another pool.name",
            )

    # Volumes

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        """Ask the pool; once more when somebody has stopped or removed it meanwhile."""
        try:
            return call(self.look())
        except libvirt.libvirtError as error:
            if error.get_error_code() not in _POOL_GONE:
                raise
            self._ready = (None, None)
            return call(self.look())

    def names(self) -> list[str]:
        """The volumes there are; none when there is no pool."""
        found: list[str] = self._ask(lambda pool: [] if pool is None else pool.listVolumes())
        return sorted(found)

    def refresh(self) -> None:
        """Have libvirt notice files that others made, such as logs that were moved aside."""
        with suppress(libvirt.libvirtError):  # not while a volume is being made: next time then
            self._ask(lambda pool: pool and pool.refresh(0))

    def find(self, name: str) -> Any:
        """A volume; None when it is not there."""
        try:
            return self._ask(lambda pool: pool and pool.storageVolLookupByName(name))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise
            return None

    def find_file(self, name: str) -> Any:
        """A volume whose file is there; None when somebody has removed it behind libvirt's back."""
        found = self.find(name)
        if found is None:
            return None
        try:
            found.info()
        except libvirt.libvirtError:
            self.pool().refresh(0)
            return self.find(name)
        return found

    def make(self, name: str, *, size: int = 0, base: str = "") -> Any:
        """Make a volume, or find it: an overlay over the file `base`, or else a plain file."""
        root = ET.Element("volume")
        ET.SubElement(root, "name").text = name
        ET.SubElement(root, "capacity").text = str(size)
        ET.SubElement(root, "allocation").text = "0"
        form = "qcow2" if base else "raw"
        target = ET.SubElement(root, "target")
        ET.SubElement(target, "format", type=form)
        ET.SubElement(ET.SubElement(target, "permissions"), "mode").text = "0600"
        if base:
            backing = ET.SubElement(root, "backingStore")
            ET.SubElement(backing, "path").text = base
            ET.SubElement(backing, "format", type="qcow2")
        text = ET.tostring(root, encoding="unicode")
        try:
            return self._ask(lambda pool: (pool or self.pool()).createXML(text, 0))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_STORAGE_VOL_EXIST:
                raise
            found = self.find(name)
            if found is None:
                raise TransientError(f"the volume {name} was just removed") from error
            return found

    def remove(self, name: str) -> None:
        """Remove a volume.  Nothing if it is gone."""
        found = self.find(name)
        if found is not None:
            try:
                found.delete(0)
            except libvirt.libvirtError:
                if self.find(name) is not None:
                    raise

    def write(self, volume: Any, body: bytes) -> None:
        """Fill a volume from its beginning."""
        stream = self._connection.get().newStream(0)
        volume.upload(stream, 0, len(body), 0)
        send(stream, body)
        stream.finish()

    def read(self, volume: Any) -> bytes:
        """What a small volume holds, without the zeros at its end."""
        stream = self._connection.get().newStream(0)
        volume.download(stream, 0, 0, 0)
        got = bytearray()
        while len(got) < _NOTE_LIMIT and (piece := stream.recv(_NOTE_LIMIT)):
            got += piece
        stream.finish() if len(got) < _NOTE_LIMIT else stream.abort()
        return bytes(got).rstrip(b"\0")


def send(stream: Any, body: bytes) -> None:
    """Send all of it; an aborted stream leaves nothing open."""
    view = memoryview(body)
    try:
        while view:
            view = view[stream.send(bytes(view[:PIECE])) :]
    except BaseException:
        with suppress(libvirt.libvirtError):
            stream.abort()
        raise
