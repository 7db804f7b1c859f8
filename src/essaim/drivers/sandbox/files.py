"""What a stack is on disk; whatever moment a process or the power dies at, it can be read again.

STACK/network.json              the network; a stack without it does not exist
STACK/keeper.lock               held by the keeper for as long as it lives
STACK/start.lock                held while a keeper is being started or the stack removed
STACK/keeper.sock, keeper.log
STACK/hosts/hosts               every machine's /etc/hosts
STACK/machines/NAME/machine.json, seed.json, console.log
STACK/machines/NAME/upper, work what the machine has changed of its image
STACK/memory/NAME/upper, work   the same where the disk's file system cannot hold it
STACK/machines/NAME/marks       where the overlay marks directories that hide the image's
STACK/devices                   says that no devices are left in folders that machines share
STACK/shared/FOLDER             what machines have in common; `/srv/data` is `srv+data` there

A name that begins with a dot is being made or removed, and does not count.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A machine as it was created.  Holds no secret."""

    name: str  #: within its stack
    address: str
    image: str  #: digest
    rootfs: str
    memory: int  #: MiB, 0 for no limit
    cores: int = 0  #: 0 for no limit
    shared: Sequence[str] = ()  #: folders it has in common with the stack's other machines


class Layout:
    """The paths of one stack."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.network = root / "network.json"
        self.keeper_lock = root / "keeper.lock"
        self.start_lock = root / "start.lock"
        self.log = root / "keeper.log"
        self.socket = root / "keeper.sock"
        self.hosts = root / "hosts"
        self.machines = root / "machines"
        self.memory = root / "memory"
        self.shared = root / "shared"
        self.devices = root / "devices"

    def machine(self, name: str) -> Path:
        """Name the directory of a machine."""
        return self.machines / name

    def folder(self, path: str) -> Path:
        """Name the directory behind a folder that machines have in common."""
        return self.shared / path.strip("/").replace("/", "+")

    def definition(self, name: str) -> Definition | None:
        """Read the machine's definition; None when there is none, or only half of one."""
        document = read(self.machine(name) / "machine.json")
        if document is None or read(self.machine(name) / "seed.json") is None:
            return None
        try:
            return Definition(**document)
        except TypeError:
            return None

    def definitions(self) -> Iterator[Definition]:
        """All machines, by name."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.machines))
        except FileNotFoundError:
            return
        for name in names:
            definition = None if name.startswith(".") else self.definition(name)
            if definition:
                yield definition

    def leftovers(self) -> list[Path]:
        """List what an interrupted creation or removal has left."""
        return sorted((*self.machines.glob(".*"), *self.shared.glob(".*")))


def read(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; None when there is no whole one."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write(path: Path, document: object) -> None:
    """Write JSON so that a reader sees the old or the new, never a half, and the power may go."""
    write_text(path, json.dumps(document, indent=1) + "\n", mode=0o600)


def write_text(path: Path, text: str, *, mode: int) -> None:
    """Write a small text file in the same way."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(fresh, flags, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make sure that the names in a directory outlast a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_machine(layout: Layout, definition: Definition, seed: object) -> None:
    """Add a machine, whole or not at all."""
    fresh = layout.machines / f".new-{definition.name}"
    fresh.mkdir(mode=0o700)
    write(fresh / "seed.json", seed)
    write(fresh / "machine.json", asdict(definition))
    fresh.rename(layout.machine(definition.name))
    sync_directory(layout.machines)
