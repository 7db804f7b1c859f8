"""Virtual machines of a server without root: to SSH on all of them, and gone again.

Beside it, in the same minutes and with the same image: kcli, a loop of virsh commands, and the same
boots started by hand.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVarTuple

from essaim_lab.bench import virsh
from essaim_lab.bench.control import Essaim, control_plane
from essaim_lab.bench.kcli import NAME, Kcli
from essaim_lab.bench.libvirt_server import Server, libvirt_server
from essaim_lab.bench.rows import CannotRunError, Peer, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from essaim_lab.bench.virsh import Guest

Given = TypeVarTuple("Given")

STACK, SITE, POOL = "bench", "rhodey", "essaim"
COUNTS = (3, 8)
TURNS = 2
#: Seconds Essaim may need beyond the boots themselves.
OVERHEAD = 3.0
_LAB = """\
defaults: [{{size: tiny}}, {{site: {site}}}, _self_]
name: {stack}
image: tiny
nodes: 1
topology: {{nodes: {{count: "${{nodes}}"}}}}
network: {{cidr: 10.99.0.0/24}}
"""


@dataclass
class Turns:
    """Seconds that somebody needed, turn by turn; the best counts, as it was disturbed least."""

    name: str
    ups: list[float] = field(default_factory=list)
    downs: list[float] = field(default_factory=list)
    trouble: str = ""

    def take(self, turn: Callable[[*Given], tuple[float, float]], *given: *Given) -> None:
        """Measure once; who cannot is asked no more."""
        if self.trouble:
            return
        try:
            up, down = turn(*given)
        except CannotRunError as error:
            self.trouble = str(error)
            return
        self.ups.append(up)
        self.downs.append(down)

    def peer(self, seconds: list[float]) -> Peer:
        """Give it as somebody to be compared with."""
        if self.trouble or not seconds:
            return Peer(name=self.name, note=f"not measured: {self.trouble}"[:80])
        return Peer(name=self.name, value=min(seconds), command=f"turns: {_list(seconds)}")


def measure(*, quick: bool) -> Iterator[Row]:
    """Raise and remove 3 and 8 machines, everybody by turns."""
    counts, turns = ((2,), 1) if quick else (COUNTS, TURNS)
    with libvirt_server() as server, control_plane() as essaim:
        bench = Bench(essaim, server)
        bench.warm_up()
        for count in counts:
            yield from bench.compare(count, turns)


class Bench:
    """One server, one lab, and everybody who raises machines there."""

    def __init__(self, essaim: Essaim, server: Server) -> None:
        self._essaim = essaim
        self._server = server
        self._lab = server.place / "lab"
        (self._lab / "site").mkdir(parents=True)
        (self._lab / "essaim.yaml").write_text("{}\n")
        (self._lab / "site" / f"{SITE}.yaml").write_text(server.site_yaml())
        (self._lab / "stack.yaml").write_text(_LAB.format(site=SITE, stack=STACK))
        self._written = 0
        self._wholes: list[float] = []  #: seconds of the last whole commands

    def warm_up(self) -> None:
        """Build the image and bring it to the server: nobody is measured doing that."""
        self._essaim.up(str(self._lab), STACK, "nodes=1")
        self._essaim.down(STACK)

    def compare(self, count: int, turns: int) -> Iterator[Row]:
        """Measure everybody by turns, and give the lines about it."""
        load = os.getloadavg()[0]
        self._wholes.clear()
        ours, loop, hand = Turns("essaim"), Turns(virsh.NAME), Turns("the boots by hand")
        kcli = Turns(NAME)
        by_loop = virsh.Loop(self._server, POOL, self._key)
        by_kcli = Kcli(self._server, POOL, self._key)
        uploaded = 0
        for _ in range(turns):
            before = self._images()
            guests: list[Guest] = []
            ours.take(self._ours, count, guests)
            if ours.trouble:
                raise CannotRunError(ours.trouble)
            uploaded += len(self._images() ^ before)
            loop.take(by_loop.turn, guests)
            hand.take(virsh.boots_by_hand, self._server, by_loop, guests)
            kcli.take(by_kcli.turn, guests)
        if hand.trouble:
            raise CannotRunError(hand.trouble)
        yield from _rows(count, ours, loop, kcli, hand, note=f"load {load:.1f} before")
        yield Row(
            what=f"{count} virtual machines: `essaim up`, with its roles", value=min(self._wholes),
            unit="s", command=f"turns: {_list(self._wholes)}",
            note="until everybody knows everybody by name, which nobody else's machines do",
        )  # fmt: skip
        yield Row(
            what=f"images written by {turns} more raises of {count}", value=uploaded, unit="",
            most=0, command="name, inode, size and time of each base-*.qcow2, before and after",
        )  # fmt: skip

    def _ours(self, count: int, guests: list[Guest]) -> tuple[float, float]:
        began = time.time()
        self._wholes.append(self._essaim.up(str(self._lab), STACK, f"nodes={count}").wall)
        answered = self._last_answer() - began
        self._written += 1
        folder = self._server.place / f"written-{self._written}"
        guests += virsh.write_down(self._server, POOL, folder)
        if len(guests) != count:
            raise CannotRunError(f"{len(guests)} machines stand instead of {count}")
        return answered, self._essaim.down(STACK).wall

    def _last_answer(self) -> float:
        """When the last machine had answered: that ends its raise; its roles come after."""
        with closing(sqlite3.connect(self._essaim.home / "essaim.db")) as database:
            words = "SELECT max(finished_at) FROM run WHERE workflow = 'raise'"
            ((milliseconds,),) = database.execute(words).fetchall()
        return float(milliseconds) / 1000

    @property
    def _key(self) -> Path:
        """The key that Essaim's machines let in."""
        return self._essaim.home / "keys" / "id_ed25519"

    def _images(self) -> set[tuple[str, int, int, int]]:
        places = self._server.home.rglob("base-*.qcow2")
        return {(p.name, (s := p.stat()).st_ino, s.st_size, s.st_mtime_ns) for p in places}


def _rows(
    count: int, ours: Turns, loop: Turns, kcli: Turns, hand: Turns, *, note: str
) -> Iterator[Row]:
    """Give the lines: beside each peer, and beside the boots alone."""
    for peer in (loop, kcli):
        yield Row(
            what=f"{count} virtual machines to an authenticated SSH command on all",
            value=min(ours.ups), unit="s",
            command=f"essaim up, until the last raise has ended; turns: {_list(ours.ups)}",
            peer=peer.peer(peer.ups), least_ratio=1, note=note,
        )  # fmt: skip
    yield Row(
        what=f"{count} virtual machines: beyond the same boots by hand, all at once",
        value=min(ours.ups) - min(hand.ups), unit="s", most=OVERHEAD,
        command="essaim up, less virsh start of machines that are made already",
        note=f"boots: {_list(hand.ups)}",
    )  # fmt: skip
    for peer in (loop, kcli):
        yield Row(
            what=f"{count} virtual machines removed", value=min(ours.downs), unit="s",
            command=f"essaim down; turns: {_list(ours.downs)}",
            peer=peer.peer(peer.downs), least_ratio=1, note=note,
        )  # fmt: skip


def _list(seconds: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in seconds)
