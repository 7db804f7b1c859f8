"""The inner door: other processes of the control plane reach nodes whose tunnel ends here.

It leads to the SSH server of a node that is in the store and keeps a tunnel to this gateway, and
nowhere else: what a tunnel leads to is chosen by its agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from essaim.gateway.relay import SocketEnd
from essaim.model.errors import EssaimError, TransientError
from essaim.remote import inner

if TYPE_CHECKING:
    from essaim.gateway.hub import Hub

log = logging.getLogger(__name__)

#: Connections that have not proved themselves yet, at once.
WAITING = 100


class Relayed(SocketEnd):
    """Another process's end of a way, among its like for as long as it is open."""

    def __init__(self, among: set[object]) -> None:
        super().__init__()
        self._among = among

    @override
    def connection_made(self, wire: Any) -> None:
        super().connection_made(wire)
        self._among.add(self)

    @override
    def connection_lost(self, _exc: Exception | None) -> None:
        super().connection_lost(_exc)
        self._among.discard(self)


class InnerDoor(asyncio.Protocol):
    """One connection of another process, until it is tied to a node."""

    def __init__(self, hub: Hub, gateway: str, keys: Callable[[], Sequence[bytes]]) -> None:
        self._hub = hub
        self._gateway = gateway
        self._keys = keys
        self._nonce = inner.new_nonce()
        self._heard = b""
        self._wire: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._lost = False

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast("asyncio.Transport", transport)
        if len(self._hub.unproved) >= WAITING:
            wire.abort()
            return
        self._hub.unproved.add(self)
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(inner.PROVE_WITHIN, wire.abort)
        wire.write(inner.greeting(self._nonce))

    @override
    def data_received(self, data: bytes) -> None:
        self._heard += data
        line, end, rest = self._heard.partition(b"\n")
        if len(line) > inner.LONGEST or rest:
            self._end("too much was said")
        elif end and self._wire is not None:
            self._wire.pause_reading()
            self._proved()
            self._answer(line)

    def _answer(self, line: bytes) -> None:
        for key in self._keys():
            found = inner.asked(line, key, self._gateway, self._nonce)
            if found is not None:
                self._hub.spawn(self._tie(found, key))
                return
        log.warning("gateway: somebody without the key was at the inner door")
        self._end("no")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._proved()

    def _proved(self) -> None:
        self._hub.unproved.discard(self)
        if self._patience is not None:
            self._patience.cancel()

    def _end(self, why: str) -> None:
        if self._wire is not None and not self._wire.is_closing():
            self._wire.write(inner.refusal(why))
            self._wire.close()

    async def _tie(self, found: inner.Asked, key: bytes) -> None:
        """Open the node's tunnel and pass on everything from then on."""
        node, wire = found.node, self._wire
        consent = inner.consent(key, self._gateway, node, found.theirs, self._nonce)
        if wire is None:
            return
        if node == inner.NOBODY:
            wire.write(consent)
            wire.close()
            return
        try:
            # The agent proved who it is when it came; since then the node may have been removed.
            if await self._hub.ask(self._hub.routes.node_key, node) is None:
                raise TransientError(f"{node} is no node of ours")
            far = await self._hub.tunnels.channel(node, within=0.0)
        except EssaimError as error:
            self._end(error.what)
            return
        if self._lost:
            far.wire.close()
            return
        wire.write(consent)
        near = Relayed(self._hub.relayed if found.why == inner.VISIT else set())
        wire.set_protocol(near)
        near.connection_made(wire)
        near.tie(far)
        wire.resume_reading()
