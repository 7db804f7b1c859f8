"""What a gateway tells the other processes of its control plane, and asks of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from essaim.remote.inner import VISIT
from essaim.store.tunnels import Door

if TYPE_CHECKING:
    import socket

    from essaim.workflows.ways import Ways


class Mates(Protocol):
    """The other gateways as one of them sees them.  Called in threads; may block."""

    @property
    def own(self) -> str:
        """The id of this gateway."""

    def keys(self) -> Sequence[bytes]:
        """Give what those who come to the inner door must have: one of these."""

    def open(self, port: int) -> None:
        """This gateway's inner door listens on that port."""

    def came(self, node: str) -> None:
        """A node's newest tunnel ends here."""

    def went(self, node: str) -> None:
        """A node has no tunnel here any more."""

    def beat(self, nodes: Collection[str]) -> None:
        """This gateway lives, and has the tunnels of these nodes."""

    def far(self, node: str) -> socket.socket | None:
        """Give a connection through another gateway; None when the node has no tunnel there."""

    def leave(self) -> None:
        """This gateway ends."""


class PlaneMates:
    """Found through the store.  `door` is where this gateway is; its port may be known later."""

    def __init__(self, ways: Ways, door: Door) -> None:
        self._ways = ways
        self._door = door
        ways.own = door.gateway

    @property
    def own(self) -> str:
        """The id of this gateway."""
        return self._door.gateway

    def keys(self) -> Sequence[bytes]:
        """Give what those who come to the inner door must have: one of these."""
        return [key.secret for key in self._ways.keys.believed()]

    def open(self, port: int) -> None:
        """Let it be known where this gateway is."""
        self._door = replace(self._door, port=port)
        self._ways.tunnels.announce(self._door)

    def came(self, node: str) -> None:
        """Let it be known that a node's newest tunnel ends here."""
        self._ways.tunnels.came(node, self._door)

    def went(self, node: str) -> None:
        """Let it be known that it does no longer."""
        self._ways.tunnels.went(node, self.own)

    def beat(self, nodes: Collection[str]) -> None:
        """Let it be known that this gateway lives, and set right what was missed."""
        self._ways.tunnels.announce(self._door)
        self._ways.tunnels.hold(self._door, nodes)

    def far(self, node: str) -> socket.socket | None:
        """Give a connection through another gateway; None when the node has no tunnel there."""
        return self._ways.far(node, VISIT)

    def leave(self) -> None:
        """Let it be known that this gateway ends."""
        self._ways.tunnels.leave(self.own)
