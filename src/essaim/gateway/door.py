"""Who may come in: clients by the key of their lease, agents by the key of their node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import asyncssh
from typing_extensions import override

from essaim.gateway.routes import NODE, is_node
from essaim.gateway.sentences import in_one_line, sentence
from essaim.gateway.tunnels import Tunnel
from essaim.gateway.visit import Visit

if TYPE_CHECKING:
    from essaim.gateway.attempts import Entry
    from essaim.gateway.hub import Hub
    from essaim.gateway.relay import TcpEnd
    from essaim.gateway.session import ClientSession

log = logging.getLogger(__name__)

#: Keys, and names, one connection may try.
TRIES = 10


class Door(asyncssh.SSHServer):
    """One connection to the gateway, from its first byte."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._connection: asyncssh.SSHServerConnection | None = None
        self._address = ""
        self._entry: Entry | None = None
        self._keys: dict[str, frozenset[bytes]] = {}
        self._failures = 0
        self._shown = ""  #: fingerprint of the last key that was not right
        self._proved: tuple[str, asyncssh.SSHKey] | None = None
        self._visit: Visit | None = None
        self._node = ""
        self._tunnel: Tunnel | None = None

    @override
    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._hub.connections.add(conn)
        self._address = str((conn.get_extra_info("peername") or ("",))[0])
        self._entry = self._hub.attempts.enter(self._address, conn.abort)
        if self._entry is None:
            conn.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._connection is not None:
            self._hub.connections.discard(self._connection)
        if self._visit is not None:
            self._visit.closed()
        elif not self._node:
            for name in self._keys:
                self._hub.turned_away(name, self._address, self._shown)

    def _leave(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            self._hub.attempts.leave(entry)

    # Logging in

    @override
    async def begin_auth(self, username: str) -> bool:
        """Find the keys of a name.  Always True: False would let anybody in."""
        if not self._keys and self._hub.banner and self._connection is not None:
            self._connection.send_auth_banner(self._hub.banner)
        if self._keys:
            self._fail()
        if not is_node(username) and self._entry is not None and self._entry.nodes_only:
            self._turn_away()
            return True
        try:
            self._keys[username] = await self._hub.keys_of(username)
        except Exception as exc:  # noqa: BLE001 - whatever is wrong there, nobody comes in
            log.warning("gateway: no answer about who may log in: %s", exc)
            self._keys[username] = frozenset()
        if is_node(username):
            self._take_node_place(username)
        return True

    def _take_node_place(self, username: str) -> None:
        """Count a node among the nodes: no stranger, nor who fails beside it, is in its way."""
        entry = self._entry
        if entry is None:
            return
        if self._keys[username]:
            self._hub.attempts.take_node_place(entry, username)
        elif entry.nodes_only:
            self._turn_away()

    def _turn_away(self) -> None:
        if self._connection is not None:
            asyncio.get_running_loop().call_soon(self._connection.abort)

    @override
    def public_key_auth_supported(self) -> bool:
        return True

    @override
    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if key.public_data in self._keys.get(username, ()):
            self._proved = (username, key)  # asyncssh checks the signature next
            return True
        self._shown = key.get_fingerprint()
        self._fail()
        return False

    def _fail(self) -> None:
        self._failures += 1
        self._hub.attempts.failed(self._address)
        if self._failures == TRIES and self._connection is not None:
            asyncio.get_running_loop().call_soon(
                self._connection.disconnect,
                asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE,
                "too many keys tried",
            )

    @override
    def auth_completed(self) -> None:
        connection = self._connection
        if connection is None:
            return
        self._leave()
        name = connection.get_extra_info("username")
        if self._proved is None or self._proved[0] != name:
            connection.abort()
            return
        self._hub.attempts.forgive(self._address, self._failures)
        if is_node(name):
            self._node = name.removeprefix(NODE)
            connection.set_keepalive(10, 3)  # a dead tunnel must not be taken for a way
        else:
            self._visit = Visit(self._hub, connection, *self._proved)

    # What may be asked for

    @override
    def session_requested(self) -> ClientSession | bool:
        return (self._visit and self._visit.session()) or False

    @override
    def connection_requested(
        self, dest_host: str, dest_port: int, *_origin: object
    ) -> Awaitable[TcpEnd] | bool:
        if self._visit is None or not self._visit.may_forward(dest_host):
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, in_one_line(sentence("own_ports"))
            )
        return self._visit.forward(dest_host, dest_port)

    @override
    def server_requested(self, listen_host: str, listen_port: int) -> Tunnel | bool:
        if not self._node or self._tunnel is not None or self._connection is None:
            return False
        at = (listen_host, listen_port)
        self._tunnel = Tunnel(self._hub.tunnels, self._node, self._connection, at)
        self._hub.tunnels.add(self._tunnel)
        return self._tunnel
