"""What the fleet's workflows act through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from essaim.model.errors import StuckError
from essaim.model.names import MachineName
from essaim.remote.ssh import Target

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from essaim.engine.workflow import Context
    from essaim.model.fleet import Lease, Node
    from essaim.model.journal import Journal
    from essaim.remote.accounts import NativeAccounts, Proof
    from essaim.remote.keyring import Keyring
    from essaim.remote.ssh import Remote
    from essaim.store.fleet import Fleet
    from essaim.store.leases import Leases

#: What an account on a rented machine may use.
LIMITS = {"processes": 512, "open_files": 4096}


class Accounts(Protocol):
    """Makes accounts on machines and takes them away: natively, or with a playbook."""

    def create(
        self,
        target: Target,
        account: str,
        keys: Sequence[str],
        expires_at: int,
        limits: Mapping[str, int],
    ) -> None:
        """Make the account, or make it as asked when it is there."""

    def remove(self, target: Target, account: str) -> None:
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
        accounts: Accounts,
        helper: NativeAccounts,
        journal: Journal,
        remote: Remote,
        keyring: Keyring,
        homes: Path,
        dial: Callable[[str], socket.socket] | None = None,
    ) -> None:
        self.fleet = fleet
        self.leases = leases
        self.accounts = accounts
        self.helper = helper
        self.journal = journal
        self.remote = remote
        self.keyring = keyring
        self.homes = homes
        self.dial = dial  #: through a node's own connection, when there is a gateway here

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
        )

    def home(self, lease: Lease, node_id: str) -> Path:
        """Where the last copy of a lease's home on a node is kept."""
        return self.homes / lease.id / f"{lease.nodes.index(node_id)}.tar.gz"


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


def its_nodes(context: Context) -> Iterator[Node]:
    """The nodes of the lease a run works on."""
    fleet = lending(context).fleet
    for key in the_lease(context).nodes:
        found = fleet.get(key)
        if found is not None:
            yield found


def make_account(context: Context, node: Node) -> None:
    """Make the lease's account on a node, for its owner and for the gateway."""
    its, lease = lending(context), the_lease(context)
    context.note(f"account on {node.name}")
    keys = [lease.public_key, its.keyring.user_public_key()]
    until = (lease.expires_at or 0) // 1000
    its.accounts.create(its.target(node), lease.account, keys, until, LIMITS)
