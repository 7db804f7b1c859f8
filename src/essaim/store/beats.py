"""Heartbeats: that a node lives, that a beat is no copy, and what it says of accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import ReplayError, UnauthorisedError
from essaim.model.fleet import LeaseState, NodeState
from essaim.store.database import db_now
from essaim.store.schema import lease, node, old_boot, pulse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

# The one statement of nearly every heartbeat.
BEAT = (
    sa.update(pulse)
    .where(
        pulse.c.credential == bindparam("b_credential"),
        pulse.c.boot == bindparam("b_boot"),
        pulse.c.seq < bindparam("b_seq"),
        pulse.c.beat_at > db_now() - bindparam("b_fresh"),
    )
    .values(beat_at=db_now(), load=bindparam("b_load"), seq=bindparam("b_seq"))
)
LAST_BEAT = (
    sa.select(pulse.c.node, pulse.c.boot, pulse.c.seq)
    .where(pulse.c.credential == bindparam("b_credential"))
    .with_for_update()
)
REBOOT = (
    sa.update(pulse)
    .where(pulse.c.node == bindparam("b_node"))
    .values(
        beat_at=db_now(),
        load=bindparam("b_load"),
        boot=bindparam("b_boot"),
        seq=bindparam("b_seq"),
    )
)
PAST = sa.select(old_boot.c.node).where(
    old_boot.c.node == bindparam("b_node"), old_boot.c.boot == bindparam("b_boot")
)
#: States in which a lease's accounts are there, or are being made.
SETTLED = (LeaseState.GRANTED, LeaseState.ACTIVE)
# A node that serves, by its credential, and whose it is.
SERVING = (
    sa.select(
        node.c.id,
        node.c.lease,
        lease.c.state,
        (lease.c.granted_at < db_now() - bindparam("b_within")).label("settled"),
    )
    .join(pulse, pulse.c.node == node.c.id)
    .join(lease, lease.c.id == node.c.lease, isouter=True)
    .where(
        pulse.c.credential == bindparam("b_credential"),
        node.c.state.in_([NodeState.READY.value, NodeState.HELD.value]),
    )
)
JUST_ENDED = (
    sa.select(lease.c.id)
    .where(
        lease.c.id.in_(bindparam("b_accounts", expanding=True)),
        lease.c.ended_at > db_now() - bindparam("b_within"),
    )
    .limit(1)
)


def keep(connection: Connection, values: Mapping[str, Any]) -> bool:
    """Keep a beat, see `Fleet.beat`; return whether it is the first of a boot or after a silence.

    Until that one is kept, nobody can rent the node.
    """
    if connection.execute(BEAT, values).rowcount:
        return False
    _first(connection, values)
    return True


@dataclass(frozen=True, slots=True)
class Strange:
    """A node whose accounts are not what they should be."""

    node: str
    lease: str | None  #: whose node it is


def strange(
    connection: Connection, credential: str, accounts: Sequence[str], within: int
) -> Strange | None:
    """Return the node if it has accounts that nothing explains, or lacks its lease's.

    One whose lease began or ended within so many milliseconds is no matter: the beat was on its
    way.  Leases that are being moved or ended are the business of the runs that do it.
    """
    values = {"b_credential": credential, "b_within": within}
    found = connection.execute(SERVING, values).one_or_none()
    if found is None or found.state not in (None, *(each.value for each in SETTLED)):
        return None
    others = sorted({*accounts} - {found.lease})
    recent = {"b_accounts": others, "b_within": within}
    if others and connection.execute(JUST_ENDED, recent).first() is None:
        return Strange(found.id, found.lease)
    lacks = found.state == LeaseState.ACTIVE.value and found.lease not in accounts
    return Strange(found.id, found.lease) if lacks and found.settled else None


def require(connection: Connection, node_id: str, credential: str) -> None:
    """UnauthorisedError when this is not the credential of the node."""
    its = sa.select(pulse.c.node).where(pulse.c.node == node_id, pulse.c.credential == credential)
    if not credential or connection.execute(its).first() is None:
        raise UnauthorisedError(
            "a machine with this host key has joined already, and nothing shows that this is it",
            hint="join as root with the server's own agent.py, which signs with the host key; or "
            f"an administrator forgets the old one: essaim nodes remove {node_id}",
        )


def begin(connection: Connection, node_id: str, credential: str) -> None:
    """Let beats with a new credential count for a node, and no others."""
    values = {"credential": credential, "boot": "", "seq": 0, "load": 0.0, "failures": 0}
    times = {"beat_at": db_now(), "checked_at": 0}
    # Copies of earlier beats carry the earlier credential.
    connection.execute(sa.delete(old_boot).where(old_boot.c.node == node_id))
    renew = sa.update(pulse).where(pulse.c.node == node_id).values(**values, **times)
    if connection.execute(renew).rowcount == 0:
        connection.execute(sa.insert(pulse).values(node=node_id, **values, **times))


def _first(connection: Connection, values: Mapping[str, Any]) -> None:
    last = connection.execute(LAST_BEAT, {"b_credential": values["b_credential"]}).one_or_none()
    if last is None:
        raise UnauthorisedError(
            "this node's credential is not known, or another has taken its place",
            hint="enrol the machine again",
        )
    beat = {key: values[key] for key in ("b_boot", "b_seq", "b_load")}
    if last.boot == values["b_boot"] and last.seq < values["b_seq"]:
        connection.execute(REBOOT, {"b_node": last.node, **beat})
        return
    its = {"b_node": last.node, "b_boot": values["b_boot"]}
    if last.boot == values["b_boot"] or connection.execute(PAST, its).first() is not None:
        raise ReplayError(
            f"heartbeat {values['b_seq']} of node {last.node} was seen before",
            hint="see whether two machines share one identity",
        )
    if last.boot:
        ended = sa.insert(old_boot).values(ended_at=db_now())
        connection.execute(ended, {"node": last.node, "boot": last.boot})
    connection.execute(REBOOT, {"b_node": last.node, **beat})
