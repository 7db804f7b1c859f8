"""What a cluster has of that which a site's file names: asked for once, before the first machine.

Storages, pools, nodes and templates are in the listing that is made anyway.  Bridges and archives
are asked for node by node, and remembered for some minutes, as is that nothing was missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from essaim.drivers.proxmox import archives, guests, places
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.cluster import Cluster, Guest, Listing
from essaim.drivers.proxmox.refusals import Refusal
from essaim.model.errors import RejectedError
from essaim.model.spelling import meant
from essaim.model.stacks import Image

#: Seconds for which an answer of the site is believed.
_BELIEVED = 600.0
#: Seconds until a question is asked again that was not answered.
_UNANSWERED = 60.0
_BRIDGES = ("bridge", "OVSBridge", "vnet")
#: What a volume of a storage is listed as, by the folder in its name.
_CONTENTS = ("vztmpl", "import", "iso")
_HOLDS = {"lxc": "rootdir", "qemu": "images"}
_DISKS = {"rootdir": "disks of containers", "images": "disks of virtual machines"}


class SiteInventory:
    """Checks names against one cluster; RejectedError says which is wrong, and what was meant."""

    def __init__(self, api: Api, cluster: Cluster) -> None:
        self._api, self._cluster, self._settings = api, cluster, api.settings
        self._lock = threading.RLock()  # questions lead to others
        self._known: dict[tuple[Any, ...], tuple[Any, float]] = {}

    def check_image(self, image: Image) -> None:
        """See that there is what machines are made from, and the pool and nodes of the site."""
        listing = self._cluster.listing()
        try:
            source, what = guests.source_of(image)
        except RejectedError as error:
            hint = f"name a template: --template NAME; {places.offered(listing)}"
            raise RejectedError(error.what, hint=hint) from error
        if source == "template":
            places.templates(listing, what, guests.kind_of(image), image.name)
        elif up := self._up(listing):
            self.nodes_with_volume(listing, str(what), up)
        self._check_nodes(listing, self._settings.nodes, "nodes: in the site file")
        self._check_pool(listing)

    def check(self, image: Image, labels: Mapping[str, str]) -> None:
        """See that a machine with these labels can be made: once, then it is remembered."""
        named = tuple(labels.get(key, "") for key in ("storage", "bridge", "node", "address"))
        key = ("checked", image.name, image.digest, *named)
        self._remembered(key, lambda: self._check(image, labels))

    def _check(self, image: Image, labels: Mapping[str, str]) -> bool:
        self.check_image(image)
        listing = self._cluster.listing()
        source, what = guests.source_of(image)
        kinds = {guests.kind_of(image)}
        if node := labels.get("node", ""):
            self._check_nodes(listing, [node], "the label node of the machine")
        if source == "template":
            found = places.templates(listing, what, guests.kind_of(image), image.name)
            kinds = {guest.kind for guest in found}
            for template in (each for each in found if listing.online(each.node)):
                self._check_template(image, template, labels)
        if source != "template" or image.settings.get("clone") == "full":
            self._check_storage(listing, labels, {_HOLDS[kind] for kind in kinds})
        self._check_bridge(listing, labels)
        return True

    # Which nodes can take a machine

    def nodes_with(
        self, listing: Listing, nodes: Iterable[str], storages: Collection[str], bridge: str = ""
    ) -> set[str]:
        """Those of the nodes that have all these storages, and the bridge, as far as we see."""
        lists = [listing.storages[name].nodes for name in storages if name in listing.storages]
        return {
            node
            for node in nodes
            if all(node in having for having in lists)
            and (not bridge or bridge in (self._bridges(node, bridge) or {bridge}))
        }

    def nodes_with_volume(
        self, listing: Listing, asked: str, nodes: Collection[str]
    ) -> dict[str, str]:
        """Which nodes have an archive or image, and its full name there; RejectedError if none."""
        if asked.startswith("/"):  # a file of the nodes, which the API does not list
            return dict.fromkeys(nodes, asked)
        storage = asked.partition(":")[0]
        self._check_storage_name(listing, storage, f"the image's {asked}")
        having = sorted(self.nodes_with(listing, nodes, [storage]))
        error = RejectedError(
            f"site {self._settings.site}: storage {storage}, with {asked}, is on none of the nodes"
            f" {', '.join(sorted(nodes))}",
            hint="see nodes: in the site file, and the storage's Nodes",
        )
        found: dict[str, str] = {}
        for node in having:
            if found and storage in listing.shared:
                found[node] = next(iter(found.values()))
                continue
            try:
                found[node] = self._volume(node, asked)
            except RejectedError as missing:
                error = missing
        if not found:
            raise error
        return found

    def _volume(self, node: str, asked: str) -> str:
        """The full name of a volume on a node."""
        storage, _, name = asked.partition(":")
        folder = "vztmpl" if archives.is_short(asked) else name.partition("/")[0]
        if folder not in _CONTENTS:
            return asked
        volumes = self._volumes(node, storage, folder)
        if volumes is None:
            return asked
        if archives.is_short(asked):
            return archives.newest(asked, volumes)
        if asked not in volumes:
            raise RejectedError(
                f"site {self._settings.site}: storage {storage} has no {asked} on {node}",
                hint=meant(asked, volumes, kind="it has") or "upload it to the storage",
            )
        return asked

    # What is checked

    def _check_nodes(self, listing: Listing, names: Iterable[str], where: str) -> None:
        for name in names:
            if name not in listing.nodes:
                raise self._unknown("node", name, listing.nodes, where)

    def _check_pool(self, listing: Listing) -> None:
        name = self._settings.pool
        if not name or name in listing.pools:
            return
        path = f"/pool/{name}"
        rights = self._ask("access/permissions", path=path) or {}
        # One that may use a pool and not look at it is not told that there is one.
        if rights.get(path) and "Pool.Audit" not in rights[path]:
            return
        raise self._unknown(
            "pool", name, listing.pools, "pool: in the site file", f"Pool.Audit on {path}"
        )

    def _check_template(self, image: Image, template: Guest, labels: Mapping[str, str]) -> None:
        disks, which = self._cluster.disks_of(template), f"{template.name} ({template.id})"
        if not disks.boot:
            raise RejectedError(
                f"image {image.name}: template {which} has no disk to boot from",
                hint="give it one, and name it in its boot order, before it is cloned",
            )
        told = guests.is_static(self._settings, labels)
        if template.kind != "qemu" or disks.cloud_init or not (told or self._settings.snippets):
            return
        what = "the address they are given" if told else "what cloud-init tells them"
        raise RejectedError(
            f"image {image.name}: template {which} has no cloud-init drive, so its machines would"
            f" never get {what}",
            hint=f"on a node: qm set {template.id} --{disks.free_drive} {disks.storage}:cloudinit"
            + ("; or address: dhcp in the site file" if told else ""),
        )

    def _check_storage(
        self, listing: Listing, labels: Mapping[str, str], holds: Collection[str]
    ) -> None:
        label = labels.get("storage", "")
        name = label or self._settings.storage
        if not name:
            return  # a full clone goes where its template is; what is made from stock says so
        where = "the label storage of the machine" if label else "storage: in the site file"
        self._check_storage_name(listing, name, where)
        known = listing.storages.get(name)
        lacking = sorted(set(holds) - known.content) if known else []
        if lacking:
            raise RejectedError(
                f"site {self._settings.site}: storage {name} may not hold {_DISKS[lacking[0]]}",
                hint=f"name another: {where}; or on a node: "
                f"pvesm set {name} --content {','.join(sorted(known.content | set(lacking)))}"
                if known
                else "",
            )

    def _check_storage_name(self, listing: Listing, name: str, where: str) -> None:
        if name in listing.storages:
            return
        # The listing wants a right that the use of a storage does not.
        seen = [self._storages(node) for node in sorted(self._up(listing))[:1]]
        if any(names is None or name in names for names in seen):
            return
        known = {*listing.storages, *(each for names in seen if names for each in names)}
        right = f"Datastore.Audit on /storage/{name}"
        raise self._unknown("storage", name, known, where, right)

    def _check_bridge(self, listing: Listing, labels: Mapping[str, str]) -> None:
        label, node = labels.get("bridge", ""), labels.get("node", "")
        name = label or self._settings.bridge
        up = [one for one in sorted(self._up(listing)) if node in ("", one)]
        there = [bridges for one in up if (bridges := self._bridges(one, name)) is not None]
        if not there or any(name in bridges for bridges in there):
            return
        where = "the label bridge of the machine" if label else "bridge: in the site file"
        right = f"SDN.Use on /sdn/zones/localnetwork/{name}"
        raise self._unknown("bridge", name, frozenset().union(*there), where, right)

    def _unknown(
        self, kind: str, name: str, known: Iterable[str], where: str, right: str = ""
    ) -> RejectedError:
        near = meant(name, known, kind="there are")
        hint = f"{near} {where} names it" if near.endswith("?") else f"{where} names it"
        hint += f"; {near}" if near and not near.endswith("?") else ""
        what = f"site {self._settings.site}: there is no {kind} {name}"
        if right:
            what += " that the account may see"
            hint += f"; if it exists, the account lacks {right}"
        return RejectedError(what, hint=hint)

    # What is asked

    def _up(self, listing: Listing) -> list[str]:
        among = self._settings.nodes
        return [
            name for name in listing.nodes if listing.online(name) and name in (among or [name])
        ]

    def _bridges(self, node: str, wanted: str) -> frozenset[str] | None:
        """The bridges of a node, or all its networks if the wanted one is none of them.

        None: it does not say.
        """

        def ask(**given: str) -> frozenset[str] | None:
            rows = self._ask(f"nodes/{node}/network", **given)
            if rows is None:
                return None
            return frozenset(str(row["iface"]) for row in rows if row.get("type") in _BRIDGES)

        own: frozenset[str] | None = self._remembered(("bridges", node), ask)
        if own is None or wanted in own:
            return own
        # Networks of the cluster itself are not among the interfaces of a node.
        more = self._remembered(("networks", node), lambda: ask(type="any_bridge"))
        return own | (more or frozenset())

    def _storages(self, node: str) -> list[str] | None:
        rows = self._ask(f"nodes/{node}/storage")
        return None if rows is None else [str(row["storage"]) for row in rows]

    def _volumes(self, node: str, storage: str, content: str) -> list[str] | None:
        def ask() -> list[str] | None:
            rows = self._ask(f"nodes/{node}/storage/{storage}/content", content=content)
            return None if rows is None else [str(row["volid"]) for row in rows]

        found: list[str] | None = self._remembered(("volumes", node, storage, content), ask)
        return found

    def _ask(self, path: str, /, **given: str) -> Any:
        """What the cluster says; None when it does not answer that, or not us."""
        try:
            return self._api.get(path, **given)
        except ApiError as error:
            if error.kind in (Refusal.DENIED, Refusal.LOST, Refusal.LOCKED):
                return None
            raise

    def _remembered(self, key: tuple[Any, ...], ask: Callable[[], Any]) -> Any:
        """The answer to a question of some minutes ago; all who ask at once share one call."""
        with self._lock:
            found, until = self._known.get(key, (None, 0.0))
            if time.monotonic() > until:
                found = ask()
                lasts = _UNANSWERED if found is None else _BELIEVED
                self._known[key] = (found, time.monotonic() + lasts)
            return found
