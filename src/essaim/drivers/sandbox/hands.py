"""What the keeper does to one machine: start, stop, remove, connect to, describe."""

from __future__ import annotations

import errno
import os
import signal
import socket
import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox import boot, disks, forks, handover, linux, streams, view
from essaim.drivers.sandbox.cgroups import Limits
from essaim.drivers.sandbox.loop import Exit, Loop, Pause, Task, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from essaim.drivers.sandbox.cgroups import Cgroups
    from essaim.drivers.sandbox.files import Definition, Layout
    from essaim.drivers.sandbox.idmap import Isolation

_BOOT_SECONDS = 60
_DIAL_SECONDS = 10
_END_SECONDS = 30
_CONSOLE_TAIL = 2000
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE}
_BUSY = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EBUSY, errno.EINTR}


class KeeperError(Exception):
    """A request that could not be fulfilled; `kind` is a code of `essaim.model.errors`."""

    def __init__(self, kind: str, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.hint = hint


class Kept:
    """One machine in the keeper's hands."""

    def __init__(self, definition: Definition, loop: Loop) -> None:
        self.definition = definition
        self.turn = Turn(loop)
        self.pid = 0  #: of its first process, until that has ended
        self.boot = ""  #: set while it is on
        self.gone = False
        self.cpus: tuple[int, ...] = ()  #: the processors it runs on

    def ended(self) -> None:
        """Take note that it is off."""
        self.pid = 0
        self.boot = ""
        self.cpus = ()


@dataclass(slots=True, kw_only=True)
class Hands:
    """Acts on machines; everything that takes time is a task."""

    layout: Layout
    loop: Loop
    network: dict[str, Any]
    bridge: int
    rootless: bool
    cgroups: Cgroups
    in_memory: bool
    isolation: Isolation
    machines: dict[str, Kept]  #: all of the stack, by name

    def _call(self, kept: Kept) -> str:
        return f"{self.layout.root.name}/{kept.definition.name}"

    def describe(self, kept: Kept) -> dict[str, Any]:
        """Say all that is known of a machine."""
        made = kept.definition
        detail = {"path": str(self.layout.machine(made.name)), "rootfs": made.rootfs}
        if self.in_memory:
            detail["disk"] = "in memory, lost when the keeper ends: this file system cannot hold it"
        if self.cgroups.note:
            detail["limits"] = self.cgroups.note
        if exposed := self.isolation.note(made.rootfs):
            detail["isolation"] = exposed
        return {
            "name": made.name,
            "address": made.address,
            "image": made.image,
            "shared": list(made.shared),
            "boot": kept.boot,
            "detail": detail,
        }

    def start(self, kept: Kept) -> Task:
        """Boot a machine unless it runs; done once its sshd has been started."""
        yield kept.turn
        try:
            if kept.gone:
                raise KeeperError("unknown", f"{self._call(kept)} does not exist")
            if not kept.boot:
                yield from self._boot(kept)
        finally:
            kept.turn.give()

    def _boot(self, kept: Kept) -> Task:
        order = self._order(kept)
        reader, writer = os.pipe()
        own, line = socket.socketpair() if order.first_id else (None, None)
        try:
            kept.pid = forks.first_process(order, writer, line)
        except OSError:
            os.close(reader)
            if own:
                own.close()
            raise
        finally:
            os.close(writer)
            if line:
                line.close()
        self.loop.watch(kept.pid, kept.ended)
        try:
            report = yield from handover.see_boot(own, order, kept.pid, reader, _BOOT_SECONDS)
        except OSError as error:
            report = f"{error.errno} {error.strerror}"
        finally:
            os.close(reader)
        if report == "":
            kept.boot = uuid.uuid4().hex if kept.pid else ""
            return
        yield from self._end(kept)
        if report is None:
            raise KeeperError("transient", f"{self._call(kept)} did not boot in {_BOOT_SECONDS} s")
        code, _, text = report.partition(" ")
        raise KeeperError(_kind(int(code)), f"{self._call(kept)} cannot start: {text}")

    def _limits(self, kept: Kept) -> Limits:
        """Choose the processors of a machine that is about to start, and say what it may use."""
        made = kept.definition
        taken = [other.cpus for other in self.machines.values() if other.pid]
        first = zlib.crc32(os.fsencode(self.layout.root))
        kept.cpus = view.choose_cpus(made.cores, taken, first)
        return Limits(memory=made.memory, cores=made.cores, cpus=view.cpu_list(kept.cpus))

    def show_memory(self) -> None:
        """Let machines see how much of their memory they use."""
        for name, kept in self.machines.items():
            if kept.boot and (used := self.cgroups.used(name)):
                view.refresh(self.layout.machine(name), kept.definition.memory, *used)

    def _order(self, kept: Kept) -> boot.Order:
        made = kept.definition
        if not Path(made.rootfs, boot.SSHD[0][1:]).exists():
            raise KeeperError(
                "rejected",
                f"{self._call(kept)} cannot start: its image is not at {made.rootfs}",
                "build the image again, or remove the machine",
            )
        for path in made.shared:
            disks.share(self.layout.folder(path), Path(made.rootfs, path[1:]))
        limits = self._limits(kept)
        return boot.Order(
            definition=made,
            home=self.layout.machine(made.name),
            disk=(self.layout.memory if self.in_memory else self.layout.machines) / made.name,
            hosts=self.layout.hosts,
            shared={path: self.layout.folder(path) for path in made.shared},
            bridge=self.bridge,
            gateway=self.network["gateway"],
            prefix=self.network["prefix"],
            rootless=self.rootless,
            first_id=self.isolation.first_id(self.layout.machine(made.name), made.rootfs),
            cpus=kept.cpus,
            cgroups=self.cgroups.make(made.name, limits),
        )

    def stop(self, kept: Kept) -> Task:
        """End a machine: ask its processes first, like a power button."""
        yield kept.turn
        try:
            asked = forks.ask_to_end(kept.pid) if kept.pid else 0
            if asked:
                yield Exit(asked, forks.GRACE_SECONDS * 2)
            yield from self._end(kept)
        finally:
            kept.turn.give()

    def _end(self, kept: Kept) -> Task:
        """Take a machine's power away and wait until it is off."""
        _kill(kept)
        if kept.pid and (yield Exit(kept.pid, _END_SECONDS)) is None:
            raise KeeperError("transient", f"{self._call(kept)} did not end in {_END_SECONDS} s")
        for _ in range(50):
            if self.cgroups.remove(kept.definition.name):
                return
            yield Pause(0.05)

    def destroy(self, kept: Kept, forget: Callable[[], None]) -> Task:
        """Remove a machine and its files; `forget` is called when nobody can find it any more."""
        yield kept.turn
        try:
            if kept.gone:
                return
            yield from self._end(kept)
            hidden = self._hide(kept)
            kept.gone = True
            forget()
            yield from self._remove([hidden, self.layout.memory / kept.definition.name])
        finally:
            kept.turn.give()

    def end_all(self, machines: Iterable[Kept]) -> Task:
        """Take the power of all machines away."""
        machines = list(machines)
        for kept in machines:
            _kill(kept)
        for kept in machines:
            yield kept.turn
            kept.turn.give()
            yield from self._end(kept)
        self.cgroups.remove_all()

    def remove_all(self, machines: Iterable[Kept]) -> Task:
        """Remove all machines at once, and the directories they were in."""
        machines = list(machines)
        yield from self.end_all(machines)
        for kept in machines:
            if not kept.gone:
                self._hide(kept)
                kept.gone = True
        if self.in_memory:
            linux.umount(str(self.layout.memory))
            self.in_memory = False
        layout = self.layout
        yield from self._remove([layout.machines, layout.memory, layout.shared])

    def _hide(self, kept: Kept) -> Path:
        """Make a machine not count any more, in one step."""
        old = self.layout.machine(kept.definition.name)
        hidden = old.with_name(f".gone-{old.name}-{uuid.uuid4().hex[:8]}")
        old.rename(hidden)
        return hidden

    def _remove(self, paths: list[Path]) -> Task:
        if (yield Exit(disks.remove(paths))):
            raise KeeperError("transient", f"could not remove all of {paths[0]}")

    def clean(self) -> None:
        """Remove what an earlier keeper, interrupted, has left."""
        self.cgroups.remove_all()
        leftovers = self.layout.leftovers()
        if leftovers:
            disks.remove(leftovers)

    def dial(self, kept: Kept, port: int) -> Generator[Any, Any, socket.socket]:
        """Connect to a port of a machine."""
        if not kept.boot:
            raise KeeperError("transient", f"{self._call(kept)} is off{self._last_words(kept)}")
        conn = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        conn.settimeout(0)
        failure = yield from streams.connect(conn, kept.definition.address, port, _DIAL_SECONDS)
        if failure:
            conn.close()
            raise KeeperError("transient", f"{self._call(kept)} port {port}: {failure}")
        conn.settimeout(None)
        return conn

    def _last_words(self, kept: Kept) -> str:
        try:
            text = (self.layout.machine(kept.definition.name) / "console.log").read_bytes()
        except OSError:
            return ""
        words = text[-_CONSOLE_TAIL:].decode(errors="replace").strip().rpartition("\n")[2]
        return f"; the last line on its console: {words}" if words else ""


def _kind(code: int) -> str:
    if code in FULL:
        return "setup"
    return "transient" if code in _BUSY else "rejected"


def _kill(kept: Kept) -> None:
    if kept.pid:
        with suppress(ProcessLookupError):
            os.kill(kept.pid, signal.SIGKILL)
