"""Nodes: how they join, that they live, and the states they go through.

Every change of state says from which states it may happen, so that of many controllers and runs
that see the same thing only one acts on it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.fleet import LeaseState, NodeState
from essaim.model.runs import NewRun
from essaim.plan.health import Policy
from essaim.store import beats
from essaim.store.adding import add_new, site_of
from essaim.store.database import Database, db_now
from essaim.store.enrolments import Enrolments, spend
from essaim.store.events import tell_node
from essaim.store.rows import fitting, milliseconds, to_node
from essaim.store.schema import enrolment, lease, node, old_boot, pulse, run

if TYPE_CHECKING:
    import builtins
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import Connection

    from essaim.model.fleet import Announcement, Beat, Node

_PULSE = (pulse.c.load, pulse.c.beat_at, pulse.c.checked_at, pulse.c.failures)
NODES = sa.select(node, *_PULSE, db_now().label("read_at")).join(pulse, pulse.c.node == node.c.id)
NODE = NODES.where(node.c.id == bindparam("b_node"))

BY_NAME = NODES.order_by(node.c.name, node.c.id)
THESE = BY_NAME.where(node.c.id.in_(bindparam("b_nodes", expanding=True)))
COUNTS = sa.select(node.c.state, node.c.drained, sa.func.count()).group_by(
    node.c.state, node.c.drained
)
NOW = sa.select(db_now())
SAME = (
    sa.select(node.c.id, node.c.state, node.c.lease)
    .where(node.c.identity == bindparam("b_identity"))
    .with_for_update()
)

CHECKED = (
    sa.update(pulse)
    .where(pulse.c.node == bindparam("b_node"))
    .values(checked_at=db_now(), failures=0)
)
UNCHECKED = (
    sa.update(pulse)
    .where(pulse.c.node == bindparam("b_node"))
    .values(failures=pulse.c.failures + 1)
)

LEASED = (
    sa.select(lease.c.nodes)
    .join(node, node.c.lease == lease.c.id)
    .where(
        node.c.id == bindparam("b_node"),
        lease.c.state.in_([state.value for state in LeaseState if state.served]),
    )
)

#: Of a node's beats that report accounts, one in so many is compared with what it should have.
LOOKED_AT = 8

#: States that operators are told of, in words that go on after the node's name.
TOLD = {
    NodeState.READY: "is proven clean and serves",
    NodeState.LOST: "is lost",
    NodeState.QUARANTINED: "could not be proven clean and is set aside",
}

#: In these states a node keeps what it has when its agent joins anew.
_KEPT = frozenset({NodeState.HELD.value, NodeState.QUARANTINED.value})


class Fleet:
    """Keeps nodes.  Tokens and credentials come here as digests."""

    def __init__(self, database: Database, policy: Policy | None = None) -> None:
        self._database = database
        self.policy = policy or Policy()
        self.enrolments = Enrolments(database)

    def now(self) -> int:
        """The time in the database's clock, which all times of nodes and leases are in."""
        return self._database.read(lambda c: c.execute(NOW).scalar_one())

    def enrol(
        self,
        digest: str,
        *,
        uses: int,
        seconds: float,
        site: str = "",
        labels: Mapping[str, str] | None = None,
        who: str = "",
        approve: bool = False,
    ) -> None:
        """Keep an enrolment that lets so many agents join within so many seconds."""
        values = {
            "digest": digest,
            "uses": uses,
            "site": site,
            "labels": json.dumps(dict(labels or {}), sort_keys=True),
            "who": fitting(who),
            "approve": approve,
        }
        until = db_now() + milliseconds(seconds)
        keep = sa.insert(enrolment).values(created_at=db_now(), expires_at=until, **values)
        self._database.write(lambda c: c.execute(keep))

    def register(
        self,
        digest: str,
        said: Announcement,
        credential: str,
        *,
        proven: bool = False,
        former: str = "",
    ) -> tuple[Node, str]:
        """Let an agent join; return its node and the run that cleans it (empty when none).

        The same host key is the same node, if the agent has `proven` that it has that key or knows
        the node's `former` credential, which is worth nothing any more.  A node that holds a lease
        or is quarantined stays so.  UnauthorisedError when the enrolment is unknown, used up or
        over, or another has that host key.
        """

        def body(connection: Connection) -> tuple[Node, str]:
            terms = spend(connection, digest)
            identity = hashlib.sha256(" ".join(said.host_key.split()[:2]).encode()).hexdigest()
            known = connection.execute(SAME, {"b_identity": identity}).one_or_none()
            if known is not None and not proven:
                beats.require(connection, known.id, former)
            key = known.id if known is not None else f"n-{secrets.token_hex(5)}"
            values = _described(said, terms)
            keeps = known is not None and (known.state in _KEPT or known.lease is not None)
            if not keeps:
                values |= {"state": NodeState.CLEANING.value, "lease": None, "reason": ""}
            if known is None:
                waits = {"waiting": bool(terms.approve), "drained": bool(terms.approve)}
                fresh = {"id": key, "identity": identity, **waits, **values}
                connection.execute(sa.insert(node).values(created_at=db_now(), **fresh))
            else:
                connection.execute(sa.update(node).where(node.c.id == key).values(**values))
            beats.begin(connection, key, credential)
            run = "" if keeps else start_clean(connection, key)
            found = to_node(connection.execute(NODE, {"b_node": key}).one())
            text = "joined" if known is None else "joined anew"
            text += ", and waits for approval" if found.waiting else ""
            tell_node(connection, "node.joined", key, text)
            return found, run

        return self._database.write(body)

    def beat(self, credential: str, beat: Beat) -> str:
        """Keep that a node lives; return the run that puts it in order (nearly always empty).

        A node that serves nobody and reports accounts is cleaned; one that serves a lease, and
        reports others or lacks that one, has it put right.  One beat in a few is looked at, and
        the first after a silence: then we may know less than there was, from a backup.
        UnauthorisedError when the credential is not, or no longer, one; ReplayError when the beat
        is a copy of, or older than, one that was seen.
        """
        values = {
            "b_credential": credential,
            "b_boot": beat.boot_id,
            "b_seq": beat.seq,
            "b_load": beat.load,
            "b_fresh": milliseconds(self.policy.fresh),
        }

        within = milliseconds(2 * self.policy.interval)

        def body(connection: Connection) -> str:
            silent = beats.keep(connection, values)
            if not silent and (not beat.accounts or beat.seq % LOOKED_AT):
                return ""
            found = beats.strange(connection, credential, beat.accounts, within)
            if found is None:
                return ""
            if found.lease is None:
                return _clean(connection, found.node, [NodeState.READY]) or ""
            return _put_right(connection, found.node, found.lease)

        return self._database.write(body)

    def checked_all(self, found: Mapping[str, bool]) -> None:
        """Keep what came of many checks over SSH: the nodes, and whether each answered."""
        well = [{"b_node": key} for key, answered in sorted(found.items()) if answered]
        ill = [{"b_node": key} for key, answered in sorted(found.items()) if not answered]

        def body(connection: Connection) -> None:
            for statement, nodes in ((CHECKED, well), (UNCHECKED, ill)):
                if nodes:
                    connection.execute(statement, nodes)

        self._database.write(body)

    def checked(self, node_id: str, *, well: bool) -> None:
        """Keep what came of a check over SSH."""
        statement = CHECKED if well else UNCHECKED
        self._database.write(lambda c: c.execute(statement, {"b_node": node_id}))

    def get(self, node_id: str) -> Node | None:
        """Return the node, or None."""
        row = self._database.read(lambda c: c.execute(NODE, {"b_node": node_id}).one_or_none())
        return None if row is None else to_node(row)

    def list(
        self, *, states: Collection[NodeState] = (), ids: Collection[str] | None = None
    ) -> builtins.list[Node]:
        """List nodes by name: all, those in some states, or those with these ids."""
        if ids is not None and len(ids) == 1 and not states:
            found = self.get(next(iter(ids)))  # nearly every lease has one
            return [] if found is None else [found]
        wanted = BY_NAME if ids is None else THESE
        if states:
            wanted = wanted.where(node.c.state.in_([state.value for state in states]))
        values = {} if ids is None else {"b_nodes": sorted(ids)}
        rows = self._database.read(lambda c: c.execute(wanted, values).all())
        return [to_node(row) for row in rows]

    def counts(self) -> tuple[Counter[NodeState], int]:
        """Count the nodes in each state, and those that are drained."""
        states: Counter[NodeState] = Counter()
        drained = 0
        for state, off, count in self._database.read(lambda c: c.execute(COUNTS).all()):
            states[NodeState(state)] += count
            drained += count if off else 0
        return states, drained

    def known(self, credential: str) -> Node | None:
        """Return the node whose credential this is, or None."""
        wanted = NODES.where(pulse.c.credential == credential)
        row = self._database.read(lambda c: c.execute(wanted).one_or_none())
        return None if row is None else to_node(row)

    def tunnel_key(self, node_id: str) -> str | None:
        """Return the public key with which a node opens its own connection, or None."""
        wanted = sa.select(node.c.tunnel_key).where(node.c.id == node_id)
        return self._database.read(lambda c: c.execute(wanted).scalar()) or None

    def drain(self, node_id: str, *, on: bool) -> bool:
        """Let a node serve no more leases, or again; False when there is none."""
        its = sa.select(node.c.drained).where(node.c.id == node_id).with_for_update()
        change = sa.update(node).where(node.c.id == node_id).values(drained=on)

        def body(connection: Connection) -> bool:
            found = connection.execute(its).one_or_none()
            if found is None:
                return False
            connection.execute(change)
            if on and not found.drained:
                tell_node(connection, "node.drained", node_id, "takes no more leases")
            return True

        return self._database.write(body)

    def approve(self, node_id: str) -> bool:
        """Let a node serve that waits for approval; False when it does not."""
        waits = (node.c.id == node_id, node.c.waiting.is_(sa.true()))
        change = sa.update(node).where(*waits).values(waiting=False, drained=False)

        def body(connection: Connection) -> bool:
            if connection.execute(change).rowcount == 0:
                return False
            tell_node(connection, "node.approved", node_id, "is approved")
            return True

        return self._database.write(body)

    def move(
        self, node_id: str, to: NodeState, *, of: Collection[NodeState], reason: str = ""
    ) -> bool:
        """Bring a node that is in one of these states to another; False when it is not.

        Its lease is forgotten, unless the node is lost and the lease still has it: then somebody
        has to be given another node.
        """
        its = (node.c.id == node_id, node.c.state.in_([state.value for state in of]))
        values: dict[str, Any] = {"state": to.value, "reason": reason}

        def body(connection: Connection) -> bool:
            keeps = to is NodeState.LOST and _needed(connection, node_id)
            forgets = {} if keeps else {"lease": None}
            change = sa.update(node).where(*its).values(**values, **forgets)
            if connection.execute(change).rowcount == 0:
                return False
            if to in TOLD:
                text = f"{TOLD[to]}: {reason}" if reason else TOLD[to]
                tell_node(connection, f"node.{to.value}", node_id, text)
            return True

        return self._database.write(body)

    def clean(self, node_id: str, *, of: Collection[NodeState]) -> str | None:
        """Begin to clean a node that is in one of these states; return the run, or None.

        None also while a lease has the node: it is moved to another, or ended, before.
        """

        def body(connection: Connection) -> str | None:
            return None if _needed(connection, node_id) else _clean(connection, node_id, of)

        return self._database.write(body)

    def remove(self, node_id: str) -> bool:
        """Forget a node without a lease; its agent is refused from then on."""
        mine = sa.and_(node.c.id == node_id, node.c.lease.is_(None))

        def body(connection: Connection) -> bool:
            if connection.execute(sa.delete(node).where(mine)).rowcount == 0:
                return False
            connection.execute(sa.delete(pulse).where(pulse.c.node == node_id))
            connection.execute(sa.delete(old_boot).where(old_boot.c.node == node_id))
            return True

        return self._database.write(body)


def start_clean(connection: Connection, node_id: str) -> str:
    """Add, within a transaction, the run that proves a node clean; return its id."""
    made = NewRun(
        id=f"clean-{node_id}-{secrets.token_hex(4)}",
        workflow="clean",
        subject=node_id,
        input={"node": node_id},
        site=site_of(connection, node.c.id == node_id),
    )
    add_new(connection, made)
    return made.id


def _clean(connection: Connection, node_id: str, of: Collection[NodeState]) -> str | None:
    its = (node.c.id == node_id, node.c.state.in_([state.value for state in of]))
    cleaning = {"state": NodeState.CLEANING.value, "lease": None, "reason": ""}
    if connection.execute(sa.update(node).where(*its).values(**cleaning)).rowcount == 0:
        return None
    return start_clean(connection, node_id)


def _put_right(connection: Connection, node_id: str, lease_id: str) -> str:
    """Have a node get its lease's account, and no other; nothing when somebody is at it."""
    at_it = sa.select(run.c.id).where(
        run.c.subject == lease_id, run.c.workflow == "renew", run.c.finished_at.is_(None)
    )
    if connection.execute(at_it.limit(1)).first() is not None:
        return ""
    made = NewRun(
        id=f"renew-{lease_id}-{secrets.token_hex(3)}",
        workflow="renew",
        subject=lease_id,
        input={"lease": lease_id, "node": node_id},
        site=site_of(connection, node.c.id == node_id),
    )
    add_new(connection, made)
    return made.id


def _needed(connection: Connection, node_id: str) -> bool:
    row = connection.execute(LEASED, {"b_node": node_id}).one_or_none()
    return row is not None and node_id in json.loads(row.nodes)


def _described(said: Announcement, terms: Any) -> dict[str, Any]:
    # What the administrator said of the enrolment counts for more than what the machine says.
    labels = {**said.labels, **json.loads(terms.labels)}
    return {
        "name": fitting(said.name),
        "site": terms.site or fitting(said.site),
        "cores": said.cores,
        "memory": said.memory,
        "labels": json.dumps(labels, sort_keys=True),
        "address": fitting(said.address),
        "port": said.port,
        "host_key": said.host_key,
        "tunnel": said.tunnel,
        "tunnel_key": said.tunnel_key,
        "agent": fitting(said.agent_version),
    }
