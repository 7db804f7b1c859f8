"""Ways to nodes that nothing can dial: through the gateway where their tunnel ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from essaim.model.errors import TransientError
from essaim.remote.inner import WORK, dial_inner

if TYPE_CHECKING:
    import socket

    from essaim.remote.signing_keys import SigningKeys
    from essaim.store.tunnels import Tunnels

#: Seconds to wait for a node's tunnel to come back, and for another gateway to answer.
REACH_WITHIN, ANSWER_WITHIN = 10.0, 5.0
#: Seconds between looks for a tunnel that is nowhere: the first, and the longest.
FIRST_LOOK, LOOK_EVERY = 0.1, 1.0


class Here(Protocol):
    """The gateway of this process, if it has one."""

    def tunnelled(self) -> list[str]:
        """Name the nodes whose tunnel ends here."""

    def dial(self, node: str, *, within: float) -> socket.socket:
        """Give a connection through a node's tunnel; TransientError when it has none."""


class Ways:
    """Reaches a tunnelled node from any process: here if its tunnel ends here, else where it does.

    `keys` are what all processes of the control plane prove themselves with, to each other.
    """

    def __init__(self, tunnels: Tunnels, keys: SigningKeys) -> None:
        self.tunnels = tunnels
        self.keys = keys
        self.here: Here | None = None
        self.own = ""  #: the id of the gateway of this process

    def lead(self) -> bool:
        """Say whether there is any gateway: without one, silence says nothing about nodes."""
        return self.here is not None or bool(self.tunnels.alive())

    def dial(self, node: str, *, within: float = REACH_WITHIN) -> socket.socket:
        """Give a connection to a node, waiting for its tunnel to come back if need be."""
        deadline, pause = time.monotonic() + within, FIRST_LOOK
        last: TransientError | None = None
        while True:
            try:
                made = self._near(node) or self.far(node)
            except TransientError as error:
                made, last = None, error
            if made is not None:
                return made
            if time.monotonic() + pause >= deadline:
                raise last or TransientError(
                    f"{node}: its agent has had no tunnel to any gateway for {within:g} s",
                    hint="see whether the agent runs on that machine and can reach a gateway",
                )
            time.sleep(pause)
            pause = min(2 * pause, LOOK_EVERY)

    def _near(self, node: str) -> socket.socket | None:
        if self.here is None or node not in self.here.tunnelled():
            return None
        return self.here.dial(node, within=ANSWER_WITHIN)

    def far(self, node: str, why: str = WORK) -> socket.socket | None:
        """Give a connection through another gateway; None when the node has no tunnel there."""
        door = self.tunnels.find(node)
        if door is None or door.gateway == self.own:
            return None
        return dial_inner(
            (door.address, door.port),
            gateway=door.gateway,
            node=node,
            key=self.keys.signing().secret,
            within=ANSWER_WITHIN,
            why=why,
        )
