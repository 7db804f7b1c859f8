"""Where a new machine goes: which template is cloned, by which node, for which node.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from essaim.drivers.proxmox.cluster import Guest, Listing
from essaim.model.errors import NotYetError, RejectedError
from essaim.model.spelling import SHOWN, meant

#: Seconds after which a node that does not answer is asked again.
_ANSWER = 10.0
#: Bytes of a machine of which nothing is known.
_USUAL = 1 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """A decision: `source` is cloned, and the machine ends up on `node`."""

    source: Guest
    node: str

    @property
    def moves(self) -> bool:
        """Whether another node than the template's gets it."""
        return self.node != self.source.node


def templates(listing: Listing, wanted: str | int, kind: str, image: str) -> list[Guest]:
    """Every template of that name or id; RejectedError when there is none."""
    every = [guest for guest in listing.guests.values() if guest.template]
    found = [
        guest
        for guest in every
        if str(wanted) in (str(guest.id), guest.name) and kind in ("", guest.kind)
    ]
    if not found:
        names = [guest.name for guest in every if kind in ("", guest.kind)]
        what = f"{kind} template {wanted}" if kind else f"template {wanted}"
        raise RejectedError(
            f"image {image}: there is no {what}",
            hint=meant(str(wanted), names) or offered(listing, kind),
        )
    return found


def offered(listing: Listing, kind: str = "") -> str:
    """Say which templates a site has, by name and id."""
    every = sorted(
        (guest.name, guest.id)
        for guest in listing.guests.values()
        if guest.template and kind in ("", guest.kind)
    )
    if not every:
        return "make one, or let the account see it: VM.Audit and VM.Clone on it"
    shown = ", ".join(f"{name} ({number})" for name, number in every[:SHOWN])
    return f"the site has: {shown}" + (", …" if len(every) > SHOWN else "")


def room(listing: Listing, busy: Mapping[str, int], among: Collection[str]) -> dict[str, float]:
    """The share of memory nobody was promised, by node; `busy` are machines about to come.

    What guests may use counts, running or not: a class is started all at once.
    """
    guests = [guest for guest in listing.guests.values() if not guest.template]
    usual = max((guest.memory for guest in guests), default=0) or _USUAL
    # One that is new is listed before anybody has looked how big it is.
    promised: Counter[str] = Counter()
    for guest in guests:
        promised[guest.node] += guest.memory or usual
    found = {}
    for node in listing.nodes.values():
        if node.online and not node.maintenance and (not among or node.name in among):
            coming = busy.get(node.name, 0) * usual
            found[node.name] = 1 - (promised[node.name] + coming) / max(1, node.memory)
    return found


def why_not(listing: Listing, names: Iterable[str]) -> str:
    """Say why these nodes get no machines now."""
    said = []
    for name in sorted(set(names)):
        node = listing.nodes.get(name)
        if node is None or not node.online:
            said.append(f"{name} does not answer")
        elif node.maintenance:
            said.append(f"{name} is in maintenance")
        else:
            said.append(f"{name} lacks the storage or the bridge")
    return f"waits for a node: {', '.join(said)}"


def choose(
    sources: Collection[Guest],
    rooms: Mapping[str, float],
    waits: Mapping[int, float],
    *,
    anywhere: bool,
    node: str = "",
    listing: Listing | None = None,
) -> Place:
    """The template whose turn comes soonest, and the node with most room that it can serve.

    `waits` says how long the queue is at each template.  `anywhere`: the disks are on a storage
    that all nodes share, so that any of them may get the machine.  `listing` says why none can.
    """
    places = [
        Place(source, goal)
        for source in sources
        for goal in (sorted(rooms) if anywhere else [source.node])
        if goal in rooms and (not node or goal == node)
    ]
    if not places:
        wanted = [node] if node else [source.node for source in sources]
        raise NotYetError(
            why_not(listing or Listing(), wanted),
            after=_ANSWER,
            hint="a linked clone stays on its template's node unless the storage is shared",
        )
    return min(
        places,
        key=lambda place: (
            waits.get(place.source.id, 0.0),
            -rooms[place.node],
            place.source.id,
            place.node,
        ),
    )


def roomiest(rooms: Mapping[str, float], node: str = "") -> str:
    """The node with most room, or the one that was asked for."""
    if node:
        if node in rooms:
            return node
        raise NotYetError(f"node {node} does not answer", after=_ANSWER)
    if not rooms:
        raise NotYetError("no node of the cluster answers", after=_ANSWER)
    return max(sorted(rooms), key=lambda name: rooms[name])
