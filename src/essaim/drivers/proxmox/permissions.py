"""Which privileges the account needs where, which of them it lacks, and how it is given them.

docs/proxmox.md has the same as a table and as commands to type; a test compares them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from essaim.drivers.proxmox.settings import Settings

#: Roles that Proxmox VE comes with, and what they give of that which we need.
_ROLES: Mapping[str, frozenset[str]] = {
    "PVEVMAdmin": frozenset(
        {
            "VM.Allocate",
            "VM.Audit",
            "VM.Config.CPU",
            "VM.Config.Disk",
            "VM.Config.HWType",
            "VM.Config.Memory",
            "VM.Config.Network",
            "VM.Config.Options",
            "VM.PowerMgmt",
            "VM.Snapshot",
        }
    ),
    "PVEPoolUser": frozenset({"Pool.Audit"}),
    "PVETemplateUser": frozenset({"VM.Audit", "VM.Clone"}),
    "PVEDatastoreUser": frozenset({"Datastore.AllocateSpace", "Datastore.Audit"}),
    "PVESDNUser": frozenset({"SDN.Use"}),
    "PVEAuditor": frozenset({"Sys.Audit"}),
}
#: What PVEAuditor gives on a storage that machines are only made from.
_READ = frozenset({"Datastore.Audit"})
#: What machines' own disks lie on.
_DISKS = frozenset({"images", "rootdir"})
#: The first version that asks for SDN.Use on bridges.
GUARDED_BRIDGES = 8
#: The first version in which VM.Monitor is split.
_SPLIT_AGENT = 9


@dataclass(frozen=True, slots=True)
class Need:
    """What the account needs on one path, and the roles that give it."""

    path: str
    roles: tuple[str, ...]
    privileges: frozenset[str]
    propagate: bool = True
    asked: tuple[str, ...] = ()  #: the paths that are looked at, where they are others

    @property
    def places(self) -> tuple[str, ...]:
        """The paths on which the privileges must be had."""
        return self.asked or (self.path,)

    def missing(self, has: Iterable[str]) -> list[str]:
        """Those that the account lacks."""
        return sorted(self.privileges - set(has))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the machines of a site use, as far as it was found out."""

    storages: Mapping[str, Iterable[str]]  #: with what they hold: rootdir, images, vztmpl, …
    templates: Iterable[int]
    cards: Iterable[tuple[str, str]]  #: bridge and VLAN; no VLAN is ""
    nodes: Iterable[str] = ()
    version: int = GUARDED_BRIDGES  #: of Proxmox VE
    agent: bool = False  #: whether host keys are read through the agents of virtual machines

    @property
    def of_agent(self) -> frozenset[str]:
        """What reading a file through a guest agent needs; PVEVMAdmin has it."""
        if not self.agent:
            return frozenset()
        split = self.version >= _SPLIT_AGENT
        return frozenset({"VM.GuestAgent.FileRead" if split else "VM.Monitor"})


def needs(settings: Settings, site: Site) -> list[Need]:
    """What the account of a site needs, path by path."""
    own = _own(settings)
    found = [replace(own, privileges=own.privileges | site.of_agent)]
    found += [_need(f"/vms/{vmid}", "PVETemplateUser") for vmid in sorted(set(site.templates))]
    found += [_storage(name, holds) for name, holds in sorted(site.storages.items())]
    if site.version >= GUARDED_BRIDGES:
        found += [_bridge(name, site.cards) for name in sorted({card[0] for card in site.cards})]
    nodes = tuple(f"/nodes/{name}" for name in site.nodes)
    found.append(Need("/nodes", ("PVEAuditor",), _ROLES["PVEAuditor"], asked=nodes))
    # Quorum and the tasks of the cluster; below it this would be a right to see everything.
    found.append(Need("/", ("PVEAuditor",), _ROLES["PVEAuditor"], propagate=False))
    return found


def _need(path: str, *roles: str, asked: tuple[str, ...] = ()) -> Need:
    privileges: frozenset[str] = frozenset().union(*(_ROLES[role] for role in roles))
    return Need(path, roles, privileges, asked=asked)


def _own(settings: Settings) -> Need:
    if settings.pool:
        return _need(f"/pool/{settings.pool}", "PVEVMAdmin", "PVEPoolUser")
    return _need("/vms", "PVEVMAdmin", asked=(f"/vms/{settings.ids[0]}",))


def _storage(name: str, holds: Iterable[str]) -> Need:
    path = f"/storage/{name}"
    if _DISKS.isdisjoint(holds):
        return Need(path, ("PVEAuditor",), _READ)
    return _need(path, "PVEDatastoreUser")


def _bridge(name: str, cards: Iterable[tuple[str, str]]) -> Need:
    """A right on the bridge holds for all its VLANs."""
    path = f"/sdn/zones/localnetwork/{name}"
    vlans = sorted({vlan for bridge, vlan in cards if bridge == name})
    asked = tuple(f"{path}/{vlan}" if vlan else path for vlan in vlans)
    return _need(path, "PVESDNUser", asked=asked)


def grant(settings: Settings, need: Need) -> str:
    """The command by which an administrator of the cluster gives what is missing on a path.

    It names all roles that are needed there: a rule on a path replaces those above it.
    """
    owner, mark, _ = settings.who.partition("!")
    # A token has at most the rights of its user.
    who = f"--users {owner}" + (f" --tokens {shlex.quote(settings.who)}" if mark else "")
    rest = "" if need.propagate else " --propagate 0"
    return f"pveum acl modify {need.path} {who} --roles {','.join(need.roles)}{rest}"


def renew(settings: Settings) -> str:
    """The commands that show a token and let it be used again."""
    owner, mark, name = settings.who.partition("!")
    if not mark:
        return f"on a node, as root: pveum user list (is {owner} enabled, and not expired?)"
    return (
        f"on a node, as root: pveum user token list {owner}\n"
        f"if it is expired: pveum user token modify {owner} {name} --expire 0\n"
        f"if it is not there, or its secret is lost: pveum user token remove {owner} {name}; "
        f"pveum user token add {owner} {name} --privsep 0"
    )
