"""What a Proxmox site can beyond the verbs of a driver: snapshots and inventory.

Snapshots are asked for by people, who wait: they end within the call, or NotYetError says that the
cluster is still at it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from essaim.drivers.checks import address_of, check_name
from essaim.drivers.proxmox import guests
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.cluster import Cluster, Guest
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.refusals import Refusal
from essaim.model.errors import RejectedError, UnknownError
from essaim.model.machines import Found, Power, Snapshot
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network

if TYPE_CHECKING:
    from essaim.drivers.proxmox.clerk import Clerk
    from essaim.drivers.proxmox.machines import Machines
    from essaim.drivers.proxmox.sights import Sights

#: Seconds somebody waits for a snapshot to be made, restored or dropped.
_WITHIN = 120.0
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{1,39}")
#: How a snapshot says in its description what the power was.
_POWER = "essaim power="
ADOPTED = "essaim-adopted"


class Abilities:
    """Snapshots and Inventory for the driver, from the parts it has."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        clerk: Clerk,
        machines: Machines,
        sights: Sights,
        *,
        plane: str,
    ) -> None:
        self._api, self._cluster, self._clerk = api, cluster, clerk
        self._machines, self._sights, self._plane = machines, sights, plane

    # Snapshots

    def snapshots(self, name: MachineName) -> Sequence[Snapshot]:
        """List them, oldest first."""
        guest = self._sights.guest(name)
        with self._machines.meaning(f"{name}: listing its snapshots"):
            rows: list[dict[str, Any]] = self._api.get(f"{guest.path}/snapshot")
        found = [
            Snapshot(
                label=row["name"],
                made_at=float(row.get("snaptime") or 0),
                power=Power.ON if f"{_POWER}on" in (row.get("description") or "") else Power.OFF,
            )
            for row in rows
            if row["name"] != "current"
        ]
        return sorted(found, key=lambda one: (one.made_at, one.label))

    def snapshot(self, name: MachineName, label: str) -> None:
        """Keep the disk as it is now.  RejectedError when there is one of that label."""
        if not _LABEL.fullmatch(label):
            raise RejectedError(
                f"{label!r} cannot name a snapshot",
                hint="a letter, then letters, digits, _ and -, 40 at most",
            )
        if any(one.label == label for one in self.snapshots(name)):
            raise RejectedError(
                f"{name} has a snapshot {label} already",
                hint=f"choose another label, or: essaim snapshot drop {name} {label}",
            )
        guest = self._sights.guest(name)
        power = "on" if self._sights.runs(name, guest) else "off"
        given = {"snapname": label, "description": _POWER + power}
        self._wait(
            name,
            f"keeps {label}",
            lambda: str(self._api.post(f"{guest.path}/snapshot", **given)),
        )

    def restore(self, name: MachineName, label: str) -> None:
        """Go back; the machine is off afterwards, and what came after the snapshot is lost."""
        guest = self._known(name, label)
        self._wait(name, "stops", lambda: self._stopping(guest))
        path = f"{guest.path}/snapshot/{label}/rollback"
        self._wait(name, f"goes back to {label}", lambda: str(self._api.post(path)))
        self._sights.know(guest, on=False)

    def _stopping(self, guest: Guest) -> str:
        return str(self._api.post(f"{guest.path}/status/stop"))

    def drop_snapshot(self, name: MachineName, label: str) -> None:
        """Forget a snapshot.  Nothing if it is gone."""
        guest = self._sights.guest(name)
        if all(one.label != label for one in self.snapshots(name)):
            return
        path = f"{guest.path}/snapshot/{label}"
        self._wait(name, f"drops {label}", lambda: str(self._api.delete(path)))

    def _known(self, name: MachineName, label: str) -> Guest:
        guest = self._sights.guest(name)
        if all(one.label != label for one in self.snapshots(name)):
            raise UnknownError(f"{name} has no snapshot {label}")
        return guest

    def _wait(self, name: MachineName, what: str, begin: Any) -> None:
        with self._machines.meaning(f"{name}: {what}"):
            try:
                kind, _, _ = what.partition(" ")
                job = Job(key=f"{name} {what}", what=what, kind=kind, begin=begin)
                self._clerk.wait(job, _WITHIN)
            except ApiError as error:
                if error.kind is not Refusal.STOPPED:
                    raise

    # Inventory

    def inventory(self) -> Sequence[Found]:
        """List every machine of the site that this account may see."""
        return self._listed(templates=False)

    def templates(self) -> Sequence[Found]:
        """List what machines are cloned from."""
        return self._listed(templates=True)

    def _listed(self, *, templates: bool) -> Sequence[Found]:
        with self._machines.meaning("listing its machines"):
            listing = self._cluster.listing(within=0)
        owners = self._machines.holdings.owners()
        return [
            self._found(guest, owners.get(guest.id, ""))
            for guest in sorted(listing.guests.values(), key=lambda one: (one.name, one.id))
            if guest.template == templates
        ]

    def _found(self, guest: Guest, holder: str) -> Found:
        ours = self._machines.is_ours(guest)
        detail = {
            "node": guest.node,
            "kind": guest.kind,
            "cores": f"{guest.cores:g}",
            "memory": f"{guest.memory >> 20} MiB",
        }
        if not ours and any(tag.startswith("essaim-") for tag in guest.tags):
            detail["note"] = "belongs to another control plane"
        elif ours and ADOPTED in guest.tags:
            detail["note"] = "adopted"
        return Found(
            id=str(guest.id),
            name=guest.name,
            power=Power.ON if guest.status == "running" else Power.OFF,
            owner=holder if ours else "",
            detail=detail,
        )

    def adopt(self, id: str, machine: Machine, network: Network) -> None:  # noqa: A002 - Found's
        """Take a stranger's machine under our care, leaving its disk and power as they are."""
        check_name(machine.name)
        address_of(machine, network)
        guest = self._cluster.find(int(id)) if id.isdigit() else None
        if guest is None or guest.template:
            what = f"{id} is a template, not a machine" if guest else f"there is no machine {id}"
            raise UnknownError(what, hint="essaim inventory --site SITE lists the machines")
        holder = self._machines.holdings.owners().get(guest.id, "")
        if self._machines.is_ours(guest) and holder == str(machine.name):
            return
        if any(tag.startswith("essaim-") for tag in guest.tags):
            whose = f"already {holder}" if holder else "of another control plane"
            raise RejectedError(f"{guest.name} is {whose}", hint="give it back first")
        self._machines.holdings.claim(machine, network, guest.id)
        wanted = (*sorted(guest.tags), *self._marks(machine.image))
        with self._machines.meaning(f"adopting {machine.name}"):
            self._api.put(f"{guest.path}/config", tags=";".join(wanted))

    def _marks(self, digest: str) -> tuple[str, ...]:
        return (*guests.tags(self._plane, digest).split(";"), ADOPTED)

    def give_back(self, guest: Guest) -> bool:
        """Take our tags off a machine that was adopted; False when it was made here."""
        if ADOPTED not in guest.tags:
            return False
        left = [tag for tag in sorted(guest.tags) if tag.partition("-")[0] != "essaim"]
        given: dict[str, Any] = {"tags": ";".join(left)} if left else {"delete": "tags"}
        self._api.put(f"{guest.path}/config", **given)
        return True
