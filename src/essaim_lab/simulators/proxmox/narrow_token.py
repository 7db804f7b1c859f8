"""The rights of a control plane's token, path by path, as docs/proxmox.md has them typed."""

from __future__ import annotations

from collections.abc import Iterator

from essaim_lab.simulators.proxmox.cluster import Cluster


def narrow_rules(cluster: Cluster, pool: str) -> Iterator[tuple[str, str, bool]]:
    """Path, role, and whether it goes on below: enough for a pool, and no other guest is seen."""
    yield "/", "PVEAuditor", False  # quorum, and the tasks of the cluster
    yield "/nodes", "PVEAuditor", True
    yield f"/pool/{pool}", "PVEVMAdmin", True
    yield f"/pool/{pool}", "PVEPoolUser", True
    for vmid, guest in sorted(cluster.guests.items()):
        if guest.template:
            yield f"/vms/{vmid}", "PVETemplateUser", True
    for storage in sorted(cluster.storages):
        yield f"/storage/{storage}", "PVEDatastoreUser", True
    for bridge in cluster.settings.bridges:
        yield f"/sdn/zones/localnetwork/{bridge}", "PVESDNUser", True


def grant_narrow(cluster: Cluster, who: str, pool: str) -> None:
    """Give somebody these rights."""
    for path, role, goes_on in list(narrow_rules(cluster, pool)):
        cluster.grant(path, who, role, propagate=goes_on)
