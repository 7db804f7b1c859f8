"""The sandbox driver: `Sandbox` is a Driver with networks of its own that can be dialled into."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.checks import address_of, block_of, check_name, check_stack
from essaim.drivers.doctor import Check
from essaim.drivers.sandbox import client, dial
from essaim.drivers.sandbox.client import GoneError
from essaim.drivers.sandbox.doctor import doctor
from essaim.drivers.sandbox.files import Definition, Layout, read, write
from essaim.model.errors import RejectedError, SetupError, TransientError, UnknownError
from essaim.model.machines import Form, Observed, Power, Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
_CLOSE_SECONDS = 60.0


class Sandbox:
    """Machines as namespaces over prebuilt root file systems, kept below `root`.

    `rootfs` says where the root file system of an image is.  May be used by any number of threads
    and processes at once.
    """

    def __init__(self, root: Path, rootfs: Callable[[Image], Path]) -> None:
        self.form = Form.ROOTFS
        self._root = root.absolute()
        self._rootfs = rootfs

    def _layout(self, stack: str) -> Layout:
        check_stack(stack)
        return Layout(self._root / stack)

    # Driver

    def observe(self, stack: str) -> Sequence[Observed]:
        """List the machines of a stack that exist.  Never changes anything."""
        layout = self._layout(stack)
        try:
            answer, _ = client.ask(layout, "list")
        except GoneError:
            return [_observed(stack, _off(layout, found)) for found in layout.definitions()]
        return [_observed(stack, document) for document in answer["machines"]]

    def create(self, machine: Machine, network: Network, image: Image, seed: Seed) -> None:
        """Make the machine's disk and definition, powered off.  Nothing if it is there."""
        name = machine.name
        layout = self._layout(name.stack)
        check_name(name)
        address_of(machine, network)
        rootfs = self._rootfs(image).absolute()
        if not rootfs.is_dir():
            raise RejectedError(f"image {image.name} is not at {rootfs}", hint="build it first")
        # A living keeper of an earlier version knows no more of a machine than this.
        definition = {
            "name": name.machine,
            "address": machine.address,
            "image": image.digest,
            "rootfs": str(rootfs),
            "memory": machine.size.memory,
        }
        planted = {"host_key": seed.host_key, "authorized_keys": list(seed.authorized_keys)}
        there = self.network(name.stack)
        if there is None or there.cidr != str(block_of(network)):
            self.open_network(name.stack, network)
        more = {"cores": machine.size.cores, "shared": list(machine.shared)}
        request = {"machine": definition, "seed": planted, **more}
        answer, _ = client.ask_or_start(layout, "create", **request)
        if machine.shared and "shared" not in answer:
            raise RejectedError(
                f"{name}: an earlier version of Essaim holds this stack and shares no folders",
                hint=f"take the stack down first: essaim down {name.stack}",
            )

    def destroy(self, name: MachineName) -> None:
        """Remove the machine and its disk, whatever its power.  Nothing if it is gone."""
        layout = self._layout(name.stack)
        try:
            client.ask(layout, "destroy", name=name.machine)
        except GoneError:
            # Its files belong to ids that only a keeper may touch.
            if layout.definition(name.machine):
                client.ask_or_start(layout, "destroy", name=name.machine)

    def start(self, name: MachineName) -> None:
        """Power it on.  Nothing if it runs."""
        layout = self._layout(name.stack)
        try:
            client.ask_or_start(layout, "start", name=name.machine)
        except GoneError as error:
            raise UnknownError(f"{name} does not exist") from error

    def stop(self, name: MachineName) -> None:
        """Power it off and keep its disk.  Nothing if it is off."""
        try:
            client.ask(self._layout(name.stack), "stop", name=name.machine)
        except GoneError:
            return  # machines live no longer than their keeper

    # Networks

    def open_network(self, stack: str, network: Network) -> None:
        """Make the stack's network.  Nothing if it is there."""
        layout = self._layout(stack)
        block = block_of(network)
        document = {
            "cidr": str(block),
            "gateway": str(block.network_address + 1),
            "prefix": block.prefixlen,
            "internet": network.internet,
        }
        while True:
            try:
                self._claim(layout, document)
                client.start(layout)
                self._turn_internet(layout, on=network.internet)
            except GoneError:
                continue  # removed by somebody else in this very moment: make it anew
            except OSError as error:
                raise SetupError(f"sandbox: {layout.root} cannot be written: {error}") from error
            return

    def _claim(self, layout: Layout, document: dict[str, Any]) -> None:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with client.locked(layout):
            there = read(layout.network)
            if there is None:
                write(layout.network, document)
            elif there["cidr"] != document["cidr"]:
                raise RejectedError(
                    f"stack {layout.root.name} has network {there['cidr']}, not {document['cidr']}",
                    hint="remove the stack first: a network cannot be changed",
                )
            elif there.get("internet", False) != document["internet"]:
                write(layout.network, {**there, "internet": document["internet"]})

    def _turn_internet(self, layout: Layout, *, on: bool) -> None:
        answer, _ = client.ask(layout, "list")
        if answer.get("internet", False) != on:
            (client.open_internet if on else client.close_internet)(layout)

    def close_network(self, stack: str) -> None:
        """Remove the stack's network and all that is left of the stack.  Nothing if gone."""
        layout = self._layout(stack)
        self._sweep()
        try:
            if layout.machines.exists() or layout.shared.exists():
                # Only a keeper can remove the machines' files: they belong to ids of its own.
                _end_machines(layout)
            with client.locked(layout):
                _end_keeper(layout)
                hidden = self._root / f".gone-{stack}-{os.getpid()}-{time.monotonic_ns()}"
                layout.root.rename(hidden)
        except GoneError:
            return
        _discard(hidden)

    def _sweep(self) -> None:
        """Finish removals that were interrupted."""
        for hidden in self._root.glob(".gone-*"):
            _discard(hidden)

    def network(self, stack: str) -> Network | None:
        """Read the network as it is now; None when there is none."""
        layout = self._layout(stack)
        document = read(layout.network)
        if document is None:
            return None
        internet = document.get("internet", False)
        if internet:
            with suppress(GoneError):  # without a keeper it opens when the next one starts
                internet = client.ask(layout, "list")[0].get("internet", False)
        return Network(cidr=document["cidr"], internet=internet)

    # Dials

    def dial(self, name: MachineName, port: int) -> socket.socket:
        """Return a connected, blocking stream socket to that port of the machine."""
        try:
            _, fds = client.ask(self._layout(name.stack), "dial", name=name.machine, port=port)
        except GoneError as error:
            raise TransientError(f"{name} is off", hint="start it first") from error
        return socket.socket(fileno=fds[0])

    def listen(self, stack: str, port: int) -> socket.socket:
        """Return a socket listening on the stack's first address, where its machines reach it."""
        _, fds = client.ask_or_start(self._layout(stack), "listen", port=port)
        return socket.socket(fileno=fds[0])

    def proxy_command(self, name: MachineName) -> list[str]:
        """Give an OpenSSH ProxyCommand (with ProxyUseFdpass) that reaches the machine's port 22."""
        directory = str(self._layout(name.stack).root)
        return [sys.executable, "-I", "-S", dial.__file__, directory, name.machine, "22"]

    def doctor(self) -> list[Check]:
        """Check what the sandbox needs: (check, ok, what was found or what to do)."""
        return doctor(self._root)


def _off(layout: Layout, found: Definition) -> dict[str, Any]:
    path = str(layout.machine(found.name))
    return {**asdict(found), "boot": "", "detail": {"path": path, "rootfs": found.rootfs}}


def _observed(stack: str, document: dict[str, Any]) -> Observed:
    return Observed(
        name=MachineName(stack, document["name"]),
        power=Power.ON if document["boot"] else Power.OFF,
        address=document["address"],
        image=document["image"],
        boot=document["boot"],
        detail=document["detail"],
        shared=tuple(document.get("shared", ())),
    )


def _discard(path: Path) -> None:
    """Delete a tree of the user's own, even where an interrupted trial left locked directories."""
    for directory, _, _ in os.walk(path):
        with suppress(OSError):
            Path(directory).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def _end_machines(layout: Layout) -> None:
    """Let the keeper end all machines, remove them, and end."""
    try:
        client.ask(layout, "close")
    except GoneError:
        if layout.machines.exists() or layout.shared.exists():
            client.ask_or_start(layout, "close")


def _end_keeper(layout: Layout) -> None:
    """Make sure that no keeper is left, not even one that was still starting."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    while client.is_held(layout):
        with suppress(GoneError):
            client.ask(layout, "close")
        if time.monotonic() > deadline:
            raise TransientError(
                f"sandbox {layout.root.name}: the keeper has not ended in {_CLOSE_SECONDS:.0f} s",
                hint=f"see {layout.log}",
            )
        time.sleep(0.01)
