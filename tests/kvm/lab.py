"""Somebody's lab whose machines are virtual, on a server that lets them do nothing special."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import subprocess
from dataclasses import dataclass
from pathlib import Path

from endtoend.people import Person
from hypervisor import Server

SITE = "rhodey"
CIDR = "10.99.0.0/24"
#: Emulated machines on a busy computer.
PATIENCE = 600.0


@dataclass(frozen=True)
class Lab:
    """A folder with a site file and stacks, and who types the commands."""

    folder: Path
    person: Person
    server: Server

    def stack(self, name: str, nodes: int) -> str:
        """Write a stack of machines that only answer; gives its path."""
        where = self.folder / name
        where.mkdir(exist_ok=True)
        (where / "stack.yaml").write_text(
            f"defaults: [{{size: tiny}}, {{site: {SITE}}}, _self_]\n"
            f"name: {name}\nimage: tiny\ntopology: {{nodes: {{count: {nodes}}}}}\n"
            f"network: {{cidr: {CIDR}}}\n"
        )
        return str(where)

    def types(self, *words: str, code: int | None = 0) -> str:
        return self.person.types(*words, code=code, within=PATIENCE)

    def begins(self, *words: str) -> subprocess.Popen[str]:
        return self.person.begins(*words)

    def machines(self, stack: str) -> dict[str, dict[str, str]]:
        """Each machine of a stack as Essaim sees it."""
        found = json.loads(self.types("status", stack, "--json"))
        return {m["name"].partition("/")[2]: m for m in found[0]["machines"]}

    def power(self, stack: str) -> dict[str, str]:
        return {name: its["power"] for name, its in self.machines(stack).items()}

    def all_meet(self, stack: str) -> dict[str, str]:
        """Every machine reaches every other one by its name; gives their addresses."""
        addresses = {name: its["address"] for name, its in self.machines(stack).items()}
        # Whose address is not found within three seconds is asked again: emulated ones are slow.
        tries = "for _ in 1 2 3 4 5 6 7 8 9; do ping -c 1 -W 20 {name} && break; done"
        line = " && ".join(tries.format(name=name) for name in addresses)
        said = self.types("run", stack, "--json", "--", "sh", "-c", line)
        answers = {each["machine"].partition("/")[2]: each["output"] for each in json.loads(said)}
        assert answers.keys() == addresses.keys()
        for output in answers.values():
            for name, address in addresses.items():
                assert f"PING {name} ({address})" in output
            assert output.count(", 0% packet loss") == len(addresses), output
        return addresses

    def reservations(self) -> list[tuple[str, ...]]:
        """What the control plane holds for its machines."""
        with sqlite3.connect(self.person.state / "essaim.db") as database:
            return sorted(database.execute("SELECT kind, holder, number FROM reservation"))


def volumes_of(stack: str, names: list[str]) -> set[str]:
    """The volumes that a stack consists of."""
    each = itertools.product(names, ("qcow2", "seed", "log"))
    return {f"{stack}.{name}.{kind}" for name, kind in each} | {f"{stack}.network"}


def bases(server: Server) -> set[str]:
    """Images that were uploaded, and the notes that they are whole."""
    whole = re.compile(r"base-[0-9a-f]{16}\.(qcow2|whole)")
    return {name for name in _volumes(server) if whole.fullmatch(name)}


def beside_bases(server: Server) -> set[str]:
    return _volumes(server) - bases(server)


def _volumes(server: Server) -> set[str]:
    return set().union(*server.volumes().values())


def only_bases_left(server: Server) -> None:
    """Nothing is left on the server but images, and what libvirt keeps for itself."""
    assert server.domains() == {}
    assert beside_bases(server) == set()
    images = bases(server)
    # The description of the pool, libvirt's logs and caches, and what every account has.
    usual = (".config/libvirt/storage/", ".cache/libvirt/", ".ssh/", ".bash", ".profile")
    left = {path for path in server.files() if not path.startswith(usual)}
    assert {path for path in left if Path(path).name not in images} == set()
    assert [line for line in server.processes().values() if "qemu-system" in line] == []
    assert server.listeners() == set()
