"""A site whose machines and servers are files: quick, and shared by every process of a trial.

What is real of them (sandbox machines, BIND, Kea, the simulators of Proxmox and Guacamole) is
tried elsewhere; these are for trials that end hundreds of times half way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from essaim.model.errors import (
    ClashError,
    NotYetError,
    RejectedError,
    TakenError,
    TransientError,
    UnknownError,
)
from essaim.model.machines import Executed, Form, Observed, Power, Snapshot
from essaim.model.names import MachineName
from essaim.model.school import Desktop, Host

#: What every machine says its host key is.
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k"


class Filed:
    """One JSON object in a file, changed by one at a time; calls are counted."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.calls: list[str] = []

    @contextlib.contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = self.seen()
            yield data
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps(data, sort_keys=True))
            fresh.replace(self.file)

    def seen(self) -> dict[str, Any]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def trouble(self) -> None:
        """What the test wants to go wrong: a file `down` beside, or `refuses` with a word."""
        if self.file.with_suffix(".down").exists():
            raise TransientError(f"{self.file.stem} does not answer")

    def refuse(self, what: str) -> None:
        word = self.file.with_suffix(".refuses")
        if word.exists() and word.read_text() in what:
            raise RejectedError(f"{self.file.stem} refuses {what}", hint="ask its administrator")


class FiledDriver(Filed):
    """Machines as entries of a file; making one takes a second call, as on a hypervisor."""

    form = Form.TEMPLATE

    def observe(self, stack: str) -> list[Observed]:
        self.calls.append("observe")
        self.trouble()
        return [
            Observed(
                name=MachineName.parse(name),
                power=Power(its["power"]),
                address=its["address"],
                image=its["image"],
                boot=its["boot"],
            )
            for name, its in self.seen().items()
            if name.startswith(f"{stack}/") and its["power"] != "coming"
        ]

    def create(self, machine, network, image, seed) -> None:
        self.calls.append("create")
        self.trouble()
        self.refuse(str(machine.name))
        with self.changed() as there:
            name = str(machine.name)
            if name not in there:
                there[name] = {
                    "power": "coming",
                    "address": machine.address,
                    "image": image.digest,
                    "boot": "",
                    "disk": "new",
                    "kept": {},
                }
                begun = True
            else:
                begun = False
                there[name]["address"] = machine.address
                if there[name]["power"] == "coming":
                    there[name]["power"] = "off"
        if begun:
            raise NotYetError(f"clones {image.name} (0 s so far)", after=0.0)

    def destroy(self, name: MachineName) -> None:
        self.trouble()
        with self.changed() as there:
            there.pop(str(name), None)

    def start(self, name: MachineName) -> None:
        self.trouble()
        self.refuse(f"start {name}")
        with self.changed() as there:
            if str(name) not in there:
                raise UnknownError(f"{name} does not exist")
            if there[str(name)]["power"] != "on":
                there[str(name)] |= {"power": "on", "boot": "1"}

    def stop(self, name: MachineName) -> None:
        self.trouble()
        with self.changed() as there:
            if str(name) in there:
                there[str(name)]["power"] = "off"

    def execute(self, name: MachineName, command) -> Executed:
        """Keep the account that the command would make, instead of running it."""
        self.trouble()
        with self.changed() as there:
            its = there.get(str(name), {"power": "off"})
            if its["power"] != "on":
                return Executed(exit_code=1, output="not running")
            if list(command) == ["true"]:
                return Executed(exit_code=0, output="")
            mode, *account = command[4:]
            self.refuse(f"account {account[0]}")
            its["account"] = None if mode == "lock" else [mode, *account]
        return Executed(exit_code=0, output=f"host_key {HOST_KEY}\n")

    def card(self, name: MachineName) -> str:
        return f"02:00:00:00:00:{len(name.machine):02x}"

    # Snapshots

    def snapshots(self, name: MachineName) -> list[Snapshot]:
        kept = self.seen()[str(name)]["kept"]
        return [Snapshot(label=label, made_at=1.0, power=Power.OFF) for label in kept]

    def snapshot(self, name: MachineName, label: str) -> None:
        with self.changed() as there:
            if label in there[str(name)]["kept"]:
                raise RejectedError(f"{name} has a snapshot {label}")
            there[str(name)]["kept"][label] = there[str(name)]["disk"]

    def restore(self, name: MachineName, label: str) -> None:
        with self.changed() as there:
            its = there[str(name)]
            its |= {"disk": its["kept"][label], "power": "off", "boot": ""}

    def drop_snapshot(self, name: MachineName, label: str) -> None:
        with self.changed() as there:
            there[str(name)]["kept"].pop(label, None)

    def write(self, name: str, what: str) -> None:
        """A student works on their machine."""
        with self.changed() as there:
            there[name]["disk"] = what


class FiledNames(Filed):
    """Names and their addresses."""

    def name(self, host: Host) -> None:
        self.trouble()
        self.refuse(host.name)
        with self.changed() as there:
            if there.setdefault(host.name, host.address) != host.address:
                raise TakenError(f"{host.name} belongs to {there[host.name]}")

    def unname(self, host: Host) -> None:
        self.trouble()
        with self.changed() as there:
            if there.get(host.name) == host.address:
                del there[host.name]

    def named(self) -> dict[str, str]:
        self.calls.append("named")
        self.trouble()
        return self.seen()


class FiledAddresses(Filed):
    """Cards and their addresses."""

    def admit(self, host: Host) -> None:
        self.trouble()
        self.refuse(host.name)
        with self.changed() as there:
            if there.setdefault(host.address, host.mac) != host.mac:
                raise ClashError(f"{host.address} belongs to {there[host.address]}")

    def dismiss(self, host: Host) -> None:
        self.trouble()
        with self.changed() as there:
            if there.get(host.address) == host.mac:
                del there[host.address]

    def admitted(self) -> list[Host]:
        self.calls.append("admitted")
        self.trouble()
        return [Host(name="", address=a, mac=mac) for a, mac in self.seen().items()]


class FiledDesktops(Filed):
    """Desktops by group and name."""

    def publish(self, desktop: Desktop) -> None:
        self.trouble()
        self.refuse(desktop.name)
        with self.changed() as there:
            there[f"{desktop.group}/{desktop.name}"] = [
                desktop.protocol,
                desktop.port,
                list(desktop.people),
            ]

    def withdraw(self, name: str, group: str = "") -> None:
        self.trouble()
        with self.changed() as there:
            there.pop(f"{group}/{name}", None)

    def published(self) -> list[Desktop]:
        self.calls.append("published")
        self.trouble()
        return [
            Desktop(name=key.partition("/")[2], group=key.partition("/")[0], protocol=its[0],
                    address="", port=its[1], people=tuple(its[2]))
            for key, its in self.seen().items()
        ]  # fmt: skip


class Remote:
    """Nobody logs in to a machine that is a file."""

    def drop(self, _name: MachineName) -> None:
        return


class Keyring:
    """Keys of nobody."""

    def host_key(self, _name: MachineName) -> str:
        return "key"

    def user_public_key(self) -> str:
        return "ssh-ed25519 AAAA plane"

    def forget(self, _stack: str) -> None:
        return


class Images:
    """Everything is a template already."""

    def ready(self, _image, _form=Form.TEMPLATE) -> Path:
        return Path("/")


class Site:
    """The machines and servers below a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.driver = FiledDriver(folder / "machines.json")
        self.names = FiledNames(folder / "names.json")
        self.addresses = FiledAddresses(folder / "addresses.json")
        self.desktops = FiledDesktops(folder / "desktops.json")

    def seen(self) -> dict[str, Any]:
        parts = (self.driver, self.names, self.addresses, self.desktops)
        return {part.file.stem: part.seen() for part in parts}

    def calls(self) -> list[str]:
        parts = (self.driver, self.names, self.addresses, self.desktops)
        return [call for part in parts for call in part.calls]


def wait_for(condition, patience: float = 120.0):
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return found
