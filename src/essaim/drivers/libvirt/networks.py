"""The networks of stacks: a note on the server says which there are, and where machines meet."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from essaim.drivers.checks import block_of
from essaim.drivers.libvirt.domains import Domains
from essaim.drivers.libvirt.ports import group_candidates
from essaim.drivers.libvirt.settings import Settings
from essaim.drivers.libvirt.storage import Storage
from essaim.model.errors import RejectedError, TakenError
from essaim.model.machines import Reservations
from essaim.model.stacks import Network

_WIDTH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the server knows about a stack's network."""

    plane: str
    cidr: str
    group: int  #: number of the multicast group; 0 where a network of the site is used
    internet: bool = False  #: whether machines reach what the server reaches

    def text(self) -> bytes:
        """The note as it is written; what an earlier version does not know only where needed."""
        values = asdict(self)
        if not self.internet:
            del values["internet"]
        # As long as any other, so that nothing of an earlier one is left behind its end.
        return json.dumps(values).encode().ljust(_WIDTH)


def volume_name(stack: str) -> str:
    """The volume that holds a stack's note; no machine's has such a name."""
    return f"{stack}.network"


class Networks:
    """Reads and writes the notes."""

    def __init__(
        self,
        settings: Settings,
        plane: str,
        storage: Storage,
        domains: Domains,
        reservations: Reservations,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._storage = storage
        self._domains = domains
        self._reservations = reservations

    def read(self, stack: str) -> Note | None:
        """The note of a stack, whoever wrote it; None when there is none, or only its beginning."""
        volume = self._storage.find(volume_name(stack))
        if volume is None:
            return None
        try:
            return Note(**json.loads(self._storage.read(volume)))
        except (ValueError, TypeError):
            return None

    def own(self, stack: str) -> Note | None:
        """The note of a stack of this control plane."""
        note = self.read(stack)
        return note if note and note.plane == self._plane else None

    def open(self, stack: str, network: Network) -> Note:
        """See to it that the stack has this network; RejectedError when it has another."""
        cidr = str(block_of(network))
        note = self.read(stack)
        if note is None:
            with self._storage.alone(f"network {stack}"):
                note = self.read(stack) or self._write(stack, cidr, internet=network.internet)
        if note.plane != self._plane:
            raise TakenError(
                f"site {self._settings.site}: another control plane has a stack {stack} there",
                hint="give yours another name",
            )
        if note.cidr != cidr:
            raise RejectedError(
                f"stack {stack} has network {note.cidr}, not {cidr}",
                hint="remove the stack first: a network cannot be changed",
            )
        if note.internet != network.internet:
            note = replace(note, internet=network.internet)
            with self._storage.alone(f"network {stack}"):
                self._storage.write(self._storage.make(volume_name(stack)), note.text())
        return note

    def _write(self, stack: str, cidr: str, *, internet: bool) -> Note:
        # The volume first: whatever is reserved can then be found, and given up, by its name.
        volume = self._storage.make(volume_name(stack))
        group = 0
        if not self._settings.network:
            taken = self._domains.groups()
            numbers = group_candidates(stack, self._plane, taken)
            group = self._reservations.reserve(self._settings.site, "group", stack, numbers)
        note = Note(plane=self._plane, cidr=cidr, group=group, internet=internet)
        self._storage.write(volume, note.text())
        return note

    def close(self, stack: str) -> None:
        """Forget the network.  Nothing if it is gone."""
        self._reservations.release(self._settings.site, stack)
        self._storage.remove(volume_name(stack))
