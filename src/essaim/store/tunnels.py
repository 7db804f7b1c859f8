"""Which gateways live, and at which of them the tunnel of a node ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds
from essaim.store.schema import gateway, tunnel

if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy.engine import Connection, Row

#: Seconds between two beats of a gateway, and after how many without one it counts as dead.
BEAT_EVERY, DEAD_AFTER = 5.0, 20.0

ALIVE = gateway.c.seen_at > db_now() - milliseconds(DEAD_AFTER)
LIVING = sa.select(gateway).where(ALIVE).order_by(gateway.c.id)
FIND = (
    sa.select(gateway)
    .join(tunnel, tunnel.c.gateway == gateway.c.id)
    .where(tunnel.c.node == bindparam("b_node"), ALIVE)
)
ITS = {
    "gateway": bindparam("b_gateway"),
    "address": bindparam("b_address"),
    "port": bindparam("b_port"),
    "seen_at": db_now(),
}
HELD = sa.select(tunnel.c.node).where(tunnel.c.gateway == bindparam("b_gateway"))
# Of a node that lost its gateway and is heard of at another one, the other one is right; one whose
# row is at a gateway that lives came there later than here.
TAKE = (
    sa.update(tunnel)
    .where(
        tunnel.c.node == bindparam("b_node"),
        tunnel.c.gateway.not_in(sa.select(gateway.c.id).where(ALIVE)),
    )
    .values(**ITS)
)
CAME = sa.update(tunnel).where(tunnel.c.node == bindparam("b_node")).values(**ITS)
WENT = sa.delete(tunnel).where(
    tunnel.c.node == bindparam("b_node"), tunnel.c.gateway == bindparam("b_gateway")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where other processes, and agents, find a gateway."""

    gateway: str
    address: str  #: of the inner door
    port: int
    public_host: str = ""  #: empty when agents find it only through an address all share
    public_port: int = 0


class Tunnels:
    """Keeps where tunnels end.  What a gateway that died has said is not believed for long."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.insert_missing(tunnel).values(node=bindparam("b_node"), **ITS)

    def announce(self, door: Door) -> None:
        """Keep that a gateway lives, and where it is."""
        its = {
            "address": door.address,
            "port": door.port,
            "public_host": door.public_host,
            "public_port": door.public_port,
            "seen_at": db_now(),
        }
        put = sa.update(gateway).where(gateway.c.id == door.gateway).values(**its)
        add = self._database.insert_missing(gateway).values(id=door.gateway, **its)

        def body(connection: Connection) -> None:
            if connection.execute(put).rowcount == 0:
                connection.execute(add)

        self._database.write(body)

    def leave(self, gateway_id: str) -> None:
        """Forget a gateway that ends, and its tunnels."""

        def body(connection: Connection) -> None:
            connection.execute(sa.delete(tunnel).where(tunnel.c.gateway == gateway_id))
            connection.execute(sa.delete(gateway).where(gateway.c.id == gateway_id))

        self._database.write(body)

    def came(self, node: str, door: Door) -> None:
        """Keep that a node's newest tunnel ends at this gateway."""
        self._put(CAME, node, door)

    def _put(self, change: sa.Update, node: str, door: Door) -> None:
        its = {
            "b_node": node,
            "b_gateway": door.gateway,
            "b_address": door.address,
            "b_port": door.port,
        }

        def body(connection: Connection) -> None:
            if connection.execute(change, its).rowcount == 0:
                connection.execute(self._add, its)

        self._database.write(body)

    def went(self, node: str, gateway_id: str) -> None:
        """Keep that a node has no tunnel to this gateway any more; another's is left alone."""
        its = {"b_node": node, "b_gateway": gateway_id}
        self._database.write(lambda c: c.execute(WENT, its))

    def hold(self, door: Door, nodes: Collection[str]) -> None:
        """Set right what was missed: this gateway has the tunnels of these nodes and no others."""
        its = {"b_gateway": door.gateway}
        held = self._database.read(lambda c: set(c.execute(HELD, its).scalars()))
        for node in held.difference(nodes):
            self.went(node, door.gateway)
        for node in set(nodes) - held:
            self._put(TAKE, node, door)

    def find(self, node: str) -> Door | None:
        """Say at which living gateway the tunnel of a node ends; None when there is none."""
        row = self._database.read(lambda c: c.execute(FIND, {"b_node": node}).first())
        return None if row is None else _door(row)

    def alive(self) -> list[Door]:
        """List the gateways that live."""
        return [_door(row) for row in self._database.read(lambda c: c.execute(LIVING).all())]

    def prune(self) -> None:
        """Forget gateways that are dead, and tunnels that ended there."""
        living = sa.select(gateway.c.id).where(ALIVE)

        def body(connection: Connection) -> None:
            connection.execute(sa.delete(tunnel).where(tunnel.c.gateway.not_in(living)))
            connection.execute(sa.delete(gateway).where(~ALIVE))

        self._database.write(body)


def _door(row: Row[Any]) -> Door:
    return Door(
        gateway=row.id,
        address=row.address,
        port=row.port,
        public_host=row.public_host,
        public_port=row.public_port,
    )
