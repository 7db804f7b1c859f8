"""The keeper at work: answers requests about one stack's machines until it is told to end."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox import disks, idmap, view
from essaim.drivers.sandbox.cgroups import Cgroups
from essaim.drivers.sandbox.files import Definition, Layout, read, write_machine, write_text
from essaim.drivers.sandbox.hands import FULL, Hands, KeeperError, Kept
from essaim.drivers.sandbox.internet import WayOut
from essaim.drivers.sandbox.loop import READ, WRITE, Loop, Pause, Ready, Task, Turn
from essaim.drivers.sandbox.netlink import Netlink, hardware_address

if TYPE_CHECKING:
    from collections.abc import Generator

BRIDGE = "stack"
_REQUEST_LIMIT = 1 << 20
_LOOK_SECONDS = 5.0
_Answer = tuple[dict[str, Any], socket.socket | None]


class Keeper:
    """Holds one stack.  Machines live exactly as long as their keeper."""

    def __init__(self, layout: Layout, *, rootless: bool) -> None:
        self._layout = layout
        self._rootless = rootless
        self._loop = Loop(_log)
        self._machines: dict[str, Kept] = {}
        self._closing = False
        self._last = Turn(self._loop)
        self._hosts = ""

    def open(self) -> None:
        """Make the network and listen."""
        network = read(self._layout.network)
        if network is None:
            sys.exit(f"{self._layout.network} cannot be read")
        os.chdir(self._layout.root)
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
        with suppress(OSError):  # all machines die with it: let memory be taken from others first
            Path("/proc/self/oom_score_adj").write_text("-900")
        netlink = Netlink()
        netlink.up("lo")
        netlink.bridge(BRIDGE, hardware_address(network["gateway"]))
        netlink.address(BRIDGE, network["gateway"], network["prefix"])
        with suppress(OSError):  # so that the way out, which is closed, says so at once
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        in_memory = disks.prepare(self._layout, rootless=self._rootless)
        isolation = idmap.Isolation()
        if not self._rootless:
            place = self._layout.memory if in_memory else self._layout.machines
            isolation = idmap.Isolation.find(place)
            disks.forbid_devices(self._layout)
        self._hands = Hands(
            layout=self._layout,
            loop=self._loop,
            network=network,
            bridge=socket.if_nametoindex(BRIDGE),
            rootless=self._rootless,
            cgroups=Cgroups.find(self._layout.root, rootless=self._rootless),
            in_memory=in_memory,
            isolation=isolation,
            machines=self._machines,
        )
        self._hands.clean()
        for found in self._layout.definitions():
            self._machines[found.name] = Kept(found, self._loop)
        with suppress(OSError):  # on a full disk what is there can still be removed
            self._write_hosts()
        self._way_out = WayOut(self._layout, self._loop, network, BRIDGE)
        self._way_out.write_resolvers()
        self._listen()
        view.warm_up()
        gc.freeze()

    def _listen(self) -> None:
        Path("keeper.sock").unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("keeper.sock")  # relative: a socket's address is short
        self._listener.listen(1024)
        self._listener.settimeout(0)
        self._loop.spawn(self._accept())
        self._loop.spawn(self._mind_the_directory())

    def run(self) -> None:
        """Serve until closed."""
        self._loop.run()

    def _mind_the_directory(self) -> Task:
        """End when the stack's directory was deleted: nobody could reach the machines any more."""
        while self._closing or self._is_there():
            self._hands.show_memory()
            yield Pause(_LOOK_SECONDS)
        _log(f"{self._layout.root} is gone")
        yield from self._hands.end_all(self._sorted())
        self._loop.stop()

    def _is_there(self) -> bool:
        try:
            own = os.path.samestat(self._layout.root.stat(), Path().stat())
            return own and self._layout.network.exists()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the file system has troubles of its own

    def _accept(self) -> Task:
        while True:
            yield Ready(self._listener.fileno(), READ)
            with suppress(BlockingIOError):
                while True:
                    conn, _ = self._listener.accept()
                    conn.settimeout(0)
                    self._loop.spawn(self._serve(conn))

    def _serve(self, conn: socket.socket) -> Task:
        with conn:
            line = yield from _read_line(conn)
            if line is None:
                return
            answer, passed = yield from self._answer(json.loads(line))
            try:
                yield from _write_line(conn, json.dumps(answer).encode() + b"\n", passed)
            finally:
                if passed:
                    passed.close()
        if self._closing and not self._machines:
            self._loop.stop()

    def _answer(self, request: dict[str, Any]) -> Generator[Any, Any, _Answer]:
        try:
            return (yield from self._act(request))
        except KeeperError as failure:
            return {"error": failure.kind, "what": failure.what, "hint": failure.hint}, None
        except OSError as error:
            _log(f"{request['op']} {request.get('name', '')}: {error}")
            kind = "setup" if error.errno in FULL else "transient"
            return {"error": kind, "what": f"sandbox: {error}", "hint": ""}, None

    def _act(self, request: dict[str, Any]) -> Generator[Any, Any, _Answer]:
        op = request["op"]
        if self._closing and op != "close":
            raise KeeperError("transient", f"stack {self._layout.root.name} is being removed")
        if op == "list":
            machines = [self._hands.describe(kept) for kept in self._sorted()]
            return {"machines": machines, "internet": self._way_out.is_open}, None
        if op == "dial":
            return {}, (yield from self._hands.dial(self._known(request), request["port"]))
        if op == "internet":
            return {"internet": request["on"]}, (yield from self._turn_internet(on=request["on"]))
        if op == "listen":
            return {}, self._offer(request["port"])
        if op == "create":
            # Apart from the rest, so that a keeper of an earlier version overlooks them.
            more: dict[str, Any] = {
                key: request[key] for key in ("cores", "shared") if key in request
            }
            self._create(Definition(**request["machine"], **more), request["seed"])
            return more, None
        elif op == "close":
            yield from self._close()
        else:
            yield from self._change(op, request)
        return {}, None

    def _offer(self, port: int) -> socket.socket:
        """Listen where machines can connect, for whoever asked: they serve what comes in."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._hands.network["gateway"], port))
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
        return listener

    def _turn_internet(self, *, on: bool) -> Generator[Any, Any, socket.socket | None]:
        """Open or close the way out; gives the socket for the uplink where it opens."""
        yield self._last  # one at a time, and not while the stack is being removed
        try:
            if on:
                return (yield from self._way_out.open())
            yield from self._way_out.close()
            return None
        finally:
            self._last.give()

    def _change(self, op: str, request: dict[str, Any]) -> Task:
        if op == "start":
            yield from self._hands.start(self._known(request))
        elif kept := self._machines.get(request["name"]):
            change = {"stop": self._hands.stop, "destroy": self._destroy}
            yield from change[op](kept)

    def _known(self, request: dict[str, Any]) -> Kept:
        kept = self._machines.get(request["name"])
        if kept is None:
            raise KeeperError(
                "unknown", f"{self._layout.root.name}/{request['name']} does not exist"
            )
        return kept

    def _sorted(self) -> list[Kept]:
        return [self._machines[name] for name in sorted(self._machines)]

    def _create(self, definition: Definition, seed: object) -> None:
        if definition.name in self._machines:
            self._write_hosts()  # in case the disk was full the first time
            return
        for other in self._machines.values():
            if other.definition.address == definition.address:
                raise KeeperError(
                    "rejected",
                    f"{definition.name} cannot have {definition.address}: "
                    f"{other.definition.name} has it",
                )
        for rest in (
            self._layout.machine(definition.name),
            self._layout.machines / f".new-{definition.name}",
        ):
            shutil.rmtree(rest, ignore_errors=True)  # what a power cut left of an earlier try
        write_machine(self._layout, definition, seed)
        self._machines[definition.name] = Kept(definition, self._loop)
        self._write_hosts()

    def _destroy(self, kept: Kept) -> Task:
        def forget() -> None:
            self._machines.pop(kept.definition.name, None)
            self._write_hosts()

        yield from self._hands.destroy(kept, forget)

    def _close(self) -> Task:
        """End every machine, remove it, and end."""
        self._closing = True
        yield self._last
        try:
            yield from self._way_out.close()
            yield from self._hands.remove_all(self._sorted())
            self._machines.clear()
        except BaseException:
            self._closing = False
            raise
        finally:
            self._last.give()

    def _write_hosts(self) -> None:
        lines = ["127.0.0.1 localhost"]
        lines += [f"{kept.definition.address} {kept.definition.name}" for kept in self._sorted()]
        text = "".join(f"{line}\n" for line in lines)
        if text != self._hosts:
            write_text(self._layout.hosts / "hosts", text, mode=0o644)
            self._hosts = text


def _log(text: str) -> None:
    with suppress(OSError):  # a full disk must not end the machines
        sys.stderr.write(f"{text.rstrip()}\n")
        sys.stderr.flush()


def _read_line(conn: socket.socket) -> Generator[Any, Any, bytes | None]:
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (yield Ready(conn.fileno(), READ, 30)) or len(line) > _REQUEST_LIMIT:
            return None
        try:
            data = conn.recv(1 << 16)
        except OSError:
            return None
        if not data:
            return None
        line += data
    return bytes(line)


def _write_line(conn: socket.socket, line: bytes, passed: socket.socket | None) -> Task:
    with suppress(OSError):  # whoever asked may have gone
        sent = socket.send_fds(conn, [line], [passed.fileno()]) if passed else 0
        while sent < len(line):
            try:
                sent += conn.send(line[sent:])
            except BlockingIOError:
                if not (yield Ready(conn.fileno(), WRITE, 30)):
                    return
