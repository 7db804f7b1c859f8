"""What the fleet's workflows act through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from essaim.model.errors import RejectedError, StuckError, TransientError
from essaim.model.names import MachineName
from essaim.remote.entry import ANYWHERE, TUNNELLED, Entry
from essaim.remote.ssh import Target

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from essaim.engine.workflow import Context
    from essaim.model.fleet import Lease, Node
    from essaim.model.journal import Journal
    from essaim.remote.accounts import NativeAccounts, Proof
    from essaim.remote.ssh import Remote
    from essaim.store.events import Events
    from essaim.store.fleet import Fleet
    from essaim.store.homes import Homes
    from essaim.store.leases import Leases

_S = TypeVar("_S")
_T = TypeVar("_T")

#: What an account on a rented machine may use.
LIMITS = {"processes": 512, "open_files": 4096}
#: Machines of one lease that are worked on at the same time.
WIDTH = 16
#: The most that is copied of a home.
MOST_MIB = 64
#: Seconds a copy of a home may take.
COPY_WITHIN = 600.0


class Accounts(Protocol):
    """Makes accounts on machines and takes them away: natively, or with a playbook."""

    def create(
        self,
        target: Target,
        account: str,
        keys: Sequence[str],
        expires_at: int,
        limits: Mapping[str, int],
        *,
        at: int,
        entry: Entry = ANYWHERE,
    ) -> None:
        """Make the account, or make it as asked when it is there."""

    def remove(self, target: Target, account: str, *, at: int) -> None:
        """Remove the account and all it has on the machine."""

    def verify(self, target: Target, account: str) -> Proof:
        """Look for anything that is left of the account."""


class Lending:
    """The services that leases need, and how their nodes are reached."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        leases: Leases,
        events: Events,
        accounts: Accounts,
        helper: NativeAccounts,
        journal: Journal,
        remote: Remote,
        homes: Homes,
        gateway_keys: Callable[[], Sequence[str]],
        sources: Sequence[str] = (),
        forwarding: bool = True,
        dial: Callable[[str], socket.socket] | None = None,
        lead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.fleet = fleet
        self.leases = leases
        self.events = events
        self.accounts = accounts
        self.helper = helper
        self.journal = journal
        self.remote = remote
        self.homes = homes
        self.gateway_keys = gateway_keys  #: with which gateways log in to accounts
        self._sources = sources
        self._forwarding = forwarding
        self.dial = dial  #: through a node's own connection to a gateway
        self._lead = lead

    def tunnels(self) -> bool:
        """Whether there is a gateway at all, here or elsewhere, that nodes may connect to."""
        return self.dial is not None and self._lead()

    def reaches(self, node: Node) -> bool:
        """Whether this process can reach it at all: some need the gateway they connect to."""
        return not node.tunnel or self.dial is not None

    def target(self, node: Node) -> Target:
        """How to reach a node as its service account."""
        dial = functools.partial(self.dial, node.id) if node.tunnel and self.dial else None
        return Target(
            name=MachineName("fleet", node.id),
            address=node.address,
            port=node.port,
            user="essaim",
            host_key=node.host_key,
            dial=dial,
            key="control",
        )

    def entry(self, node: Node) -> Entry:
        """From where gateways come to a node, and what they let be forwarded there."""
        sources = TUNNELLED if node.tunnel else self._sources
        return Entry(sources=tuple(sources), forwarding=self._forwarding)

    def copy_home(
        self, lease: Lease, node: Node, *, most_mib: int = MOST_MIB, within: float = COPY_WITHIN
    ) -> None:
        """Copy what changed in a lease's home on one of its nodes since the last copy."""
        place = lease.nodes.index(node.id)
        since = self.homes.since(lease.id, place, node.id)
        data = self.helper.save(
            self.target(node), lease.account, most_mib, since=since, within=within
        )
        self.homes.add(lease.id, place, node.id, data, full=not since)


def lending(context: Context) -> Lending:
    """The engine hands tools on without knowing them; here they get their type back."""
    return cast("Lending", context.tools.lending)


def the_lease(context: Context) -> Lease:
    """The lease a run works on, as it is now."""
    key = context.run.input["lease"]
    found = lending(context).leases.get(key)
    if found is None:
        raise StuckError(f"lease {key} is no longer in the store", hint="abandon this run")
    return found


def its_nodes(context: Context, lease: Lease) -> list[Node]:
    """The nodes a lease has, in its order: those that others have taken since are not its own."""
    held = {node.id: node for node in lending(context).fleet.list(ids=lease.nodes)}
    return [held[key] for key in lease.nodes if key in held and held[key].lease == lease.id]


def at_once(act: Callable[[_S], _T], nodes: Sequence[_S]) -> list[_T]:
    """Do it for all nodes at the same time; the first error is raised once all have ended."""
    if len(nodes) <= 1:
        return [act(node) for node in nodes]
    with ThreadPoolExecutor(min(WIDTH, len(nodes))) as threads:
        return list(threads.map(act, nodes))


def restore_home(context: Context, lease: Lease, node: Node, place: int) -> dict[str, Any]:
    """Bring the last copy of a home to a node, when there is one; say how much, or why not."""
    its = lending(context)
    layers = its.homes.layers(lease.id, place)
    if not layers:
        return {"restored": 0}
    context.note(f"restoring the home on {node.name}")
    try:
        its.helper.restore(
            its.target(node), lease.account, layers, at=node.read_at, most_mib=MOST_MIB
        )
    except RejectedError as error:
        # It would be refused again: better a machine without files than none.  The copy is kept.
        its.homes.set_aside(lease.id, place)
        context.note(f"{node.name}: the home could not be restored: {error.what}")
        return {"restored": 0, "why": error.what}
    return {"restored": sum(map(len, layers))}


def make_account(context: Context, lease: Lease, node: Node) -> None:
    """Make the lease's account on a node."""
    give_account(lending(context), lease, node)


def give_account(its: Lending, lease: Lease, node: Node) -> None:
    """Make the lease's account as it should be now, for gateways alone: they know its owner."""
    keys = its.gateway_keys()
    if not keys:
        raise TransientError(
            "no gateway has said yet which key it logs in to machines with",
            hint="start one: essaim gateway",
        )
    until = (lease.expires_at or 0) // 1000
    # All of the machine, for nobody else is on it; the machine itself keeps a reserve.
    limits = {**LIMITS, "rented_cores": node.cores, "rented_memory_mib": node.memory}
    its.accounts.create(
        its.target(node),
        lease.account,
        keys,
        until,
        limits,
        at=node.read_at,
        entry=its.entry(node),
    )
