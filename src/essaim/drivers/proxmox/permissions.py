"""Which privileges the account needs where, which of them it lacks, and how it is given them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from essaim.drivers.proxmox.settings import Settings

#: Roles that Proxmox VE comes with, and what they give of that which we need.
_ROLES: Mapping[str, frozenset[str]] = {
    "PVEVMAdmin": frozenset(
        {
            "VM.Allocate",
            "VM.Audit",
            "VM.Config.CPU",
            "VM.Config.Cloudinit",
            "VM.Config.Disk",
            "VM.Config.HWType",
            "VM.Config.Memory",
            "VM.Config.Network",
            "VM.Config.Options",
            "VM.PowerMgmt",
            "VM.Snapshot",
            "VM.Snapshot.Rollback",
        }
    ),
    "PVEPoolUser": frozenset({"Pool.Audit"}),
    "PVETemplateUser": frozenset({"VM.Audit", "VM.Clone"}),
    "PVEDatastoreUser": frozenset({"Datastore.AllocateSpace", "Datastore.Audit"}),
    "PVESDNUser": frozenset({"SDN.Use"}),
    "PVEAuditor": frozenset({"Sys.Audit"}),
}


@dataclass(frozen=True, slots=True)
class Need:
    """What the account needs on one path: all that these roles give of what we use."""

    path: str
    roles: tuple[str, ...]

    @property
    def privileges(self) -> frozenset[str]:
        """The privileges themselves."""
        return frozenset().union(*(_ROLES[role] for role in self.roles))

    def missing(self, has: Iterable[str]) -> list[str]:
        """Those that the account lacks."""
        return sorted(self.privileges - set(has))


def needs(settings: Settings, storages: Iterable[str], templates: Iterable[int]) -> list[Need]:
    """What the account of a site needs, path by path."""
    own = Need("/vms", ("PVEVMAdmin",))
    if settings.pool:
        own = Need(f"/pool/{settings.pool}", ("PVEVMAdmin", "PVEPoolUser"))
    return [
        own,
        *(Need(f"/vms/{number}", ("PVETemplateUser",)) for number in sorted(set(templates))),
        *(Need(f"/storage/{name}", ("PVEDatastoreUser",)) for name in sorted(set(storages))),
        Need(_bridge(settings), ("PVESDNUser",)),
        Need("/nodes", ("PVEAuditor",)),
    ]


def _bridge(settings: Settings) -> str:
    # A right on the bridge holds for all its VLANs.
    return f"/sdn/zones/localnetwork/{settings.bridge}"


def grant(settings: Settings, need: Need) -> str:
    """The command by which an administrator of the cluster gives what is missing on a path.

    It names all roles that are needed there: a rule on a path replaces those above it.
    """
    owner, mark, _ = settings.who.partition("!")
    # A token has at most the rights of its user.
    who = f"--users {owner}" + (f" --tokens '{settings.who}'" if mark else "")
    return f"pveum acl modify {need.path} {who} --roles {','.join(need.roles)}"
