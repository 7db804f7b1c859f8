"""What an account finds at a Proxmox VE cluster, and who must do what about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from essaim.drivers.doctor import Check
from essaim.drivers.proxmox import guests, permissions, places
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.cluster import Cluster, Guest, Listing, first_storage
from essaim.drivers.proxmox.permissions import Need
from essaim.drivers.proxmox.reachability import check_reachable, hurried
from essaim.drivers.proxmox.settings import Settings
from essaim.drivers.proxmox.tls import fingerprint, shown_certificate
from essaim.model.errors import EssaimError, RejectedError, SiteAwayError
from essaim.model.spelling import meant
from essaim.model.stacks import Image

#: Below this a storage holds no machines for long.
FREE_DISK = 5 * 2**30
#: A certificate that expires sooner is told of.
_SOON = timedelta(days=30)
_SECONDS = 5.0
_BRIDGES = ("bridge", "OVSBridge", "vnet")
_SHOWN = 12
#: What a storage holds of machines: disks of virtual machines, of containers.
_EITHER = {"images", "rootdir"}


def doctor(settings: Settings, images: Sequence[Image] = ()) -> list[Check]:
    """Look at everything that machines made from these images need; changes nothing."""
    with closing(hurried(settings)) as api:
        found = list(_servers(settings))
        if not any(check.ok for check in found):
            return found
        # One that does not answer is done without.
        found = [check if check.ok else replace(check, ok=True, warn=True) for check in found]
        try:
            listing = Cluster(api).listing(within=0)
        except ApiError as error:
            text = _words(error.ours(settings.site, "listing what there is"))
            return [*found, Check("cluster", ok=False, text=text)]
        return [*found, *_Doctor(api, listing, images).checks()]


def _servers(settings: Settings) -> Iterator[Check]:
    """Whether each server answers, is the right one, and knows the account."""
    for url in settings.urls:
        try:
            check_reachable(replace(settings, urls=(url,)))
        except SiteAwayError as error:
            yield Check("server", ok=False, text=f"{error.what}\n{_unreached(error)}")
        except EssaimError as error:
            yield Check("server", ok=False, text=_words(error) + _certificate(url, settings))
        else:
            soon = _expiry(url)
            yield Check("server", ok=True, text=f"{url} answers{soon}", warn=bool(soon))


def _unreached(error: SiteAwayError) -> str:
    if "refuses" in error.what:
        return error.hint
    return "see whether it runs, whether a firewall is in between, and the site's url"


def _certificate(url: str, settings: Settings) -> str:
    """What the server shows, for who has to compare it; nothing when it shows none."""
    try:
        shown = fingerprint(shown_certificate(url, _SECONDS))
    except OSError:
        return ""
    if settings.fingerprint and shown.replace(":", "").lower() != settings.fingerprint:
        return (
            f"\nit shows the certificate {shown}\n"
            "if that is the right one, on a node: "
            "openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem"
        )
    return ""


def _expiry(url: str) -> str:
    """Say when its certificate expires, if that is soon."""
    from cryptography import x509  # noqa: PLC0415 - slow to import, and only needed here

    try:
        until = x509.load_der_x509_certificate(shown_certificate(url, _SECONDS)).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    if until - datetime.now(UTC) > _SOON:
        return ""
    return f"; its certificate expires on {until:%Y-%m-%d}: on a node, pvecm updatecerts --force"


class _Doctor:
    """One examination of a cluster that answers."""

    def __init__(self, api: Api, listing: Listing, images: Sequence[Image]) -> None:
        self.api, self.listing, self.images = api, listing, images
        self.settings = api.settings
        wanted = self.settings.nodes or tuple(sorted(listing.nodes))
        self.online = [name for name in wanted if listing.online(name)]
        self.templates: list[Guest] = []
        self.storages: dict[str, set[str]] = {}  #: what each must be able to hold

    def checks(self) -> Iterator[Check]:
        yield from self.nodes()
        yield from self.stock()
        if self.settings.storage:
            kinds = {_content(guest) for guest in self.templates}
            self.storages.setdefault(self.settings.storage, set()).update(kinds or _EITHER)
        if self.settings.snippets:
            self.storages.setdefault(self.settings.snippets, {"snippets"})
        yield from self.rights()
        for name, holds in sorted(self.storages.items()):
            yield self.storage(name, holds)
        yield self.bridge()
        yield self.numbers()

    # -- nodes ---------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Check]:
        known = self.listing.nodes
        for name in self.settings.nodes:
            if name not in known:
                near = meant(name, known, kind="there are")
                text = f"the site names {name}, which the cluster does not have; {near}"
                yield Check("nodes", ok=False, text=text)
        away = [name for name, node in sorted(known.items()) if not node.online]
        text = f"{', '.join(self.online) or 'none'} online"
        if away:
            text += f"; {', '.join(away)} does not answer: machines there wait for it"
        yield Check("nodes", ok=bool(self.online), text=text, warn=bool(away))

    # -- what machines are made from -----------------------------------------------------------

    def stock(self) -> Iterator[Check]:
        there = sorted(
            f"{guest.name} ({guest.id}, {guest.kind})"
            for guest in self.listing.guests.values()
            if guest.template
        )
        if not self.images:
            shown = ", ".join(there[:_SHOWN]) + (", …" if len(there) > _SHOWN else "")
            text = shown or "none that the account sees: VM.Audit and VM.Clone on them let it"
            yield Check("templates", ok=True, text=text, warn=not there)
        for image in self.images:
            yield self.image(image)

    def image(self, image: Image) -> Check:
        try:
            source, what = guests.source_of(image)
            if source != "template":
                return Check("templates", ok=True, text=f"image {image.name} is made from {what}")
            found = places.templates(self.listing, what, guests.kind_of(image), image.name)
        except RejectedError as error:
            return Check("templates", ok=False, text=_words(error))
        self.templates += found
        without = [guest for guest in found if not self.boots_from(guest)]
        if without:
            ids = ", ".join(str(guest.id) for guest in without)
            text = f"{what} ({ids}) has no disk to boot from: give it one before it is cloned"
            return Check("templates", ok=False, text=text)
        where = ", ".join(f"{guest.id} on {guest.node}" for guest in found)
        return Check("templates", ok=True, text=f"{what}: {where}")

    def boots_from(self, guest: Guest) -> str:
        """The storage of a template's disk; nothing when it has none."""
        try:
            storage = first_storage(self.api.get(f"{guest.path}/config"))
        except ApiError:
            return "?"  # not for us to read; the rights say so
        if storage:
            self.storages.setdefault(storage, set()).add(_content(guest))
        return storage

    # -- what the account may do ---------------------------------------------------------------

    def rights(self) -> Iterator[Check]:
        ids = [guest.id for guest in self.templates]
        wanted = permissions.needs(self.settings, self.storages, ids)
        lacking = [(need, missing) for need in wanted if (missing := self.missing(need))]
        if not lacking:
            yield Check("rights", ok=True, text=f"{self.settings.who} has all it needs")
        for need, missing in lacking:
            text = f"{self.settings.who} lacks {', '.join(missing)} on {need.path}\n"
            text += f"on a node, as root: {permissions.grant(self.settings, need)}"
            yield Check("rights", ok=False, text=text)

    def missing(self, need: Need) -> list[str]:
        try:
            found = self.api.get("access/permissions", path=need.path)
        except ApiError:
            found = {}
        return need.missing(found.get(need.path, {}))

    # -- where machines lie, and what they are plugged into ------------------------------------

    def storage(self, name: str, holds: set[str]) -> Check:
        rows = {node: row for node in self.online if (row := self.row(node, name))}
        if not rows:
            text = f"{name} does not exist, or is not for the account to see"
            known = sorted({row["storage"] for node in self.online for row in self.rows(node)})
            return Check("storage", ok=False, text=f"{text}; there are: {', '.join(known)}")
        wrong = [problem for node, row in rows.items() if (problem := _wrong(node, row, holds))]
        free = min(int(row.get("avail") or 0) for row in rows.values())
        if free < FREE_DISK:
            wrong.append(f"at least {FREE_DISK >> 30} GiB are wanted")
        without = [node for node in self.online if node not in rows]
        more = [f"not on {', '.join(without)}"] if without else []
        text = "; ".join([f"{name}: {free / 2**30:.1f} GiB free", *dict.fromkeys(wrong), *more])
        return Check("storage", ok=not wrong, text=text, warn=bool(without))

    def rows(self, node: str) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self.api.get(f"nodes/{node}/storage")
        except ApiError:
            return []
        return found

    def row(self, node: str, name: str) -> dict[str, Any] | None:
        return next((row for row in self.rows(node) if row["storage"] == name), None)

    def bridge(self) -> Check:
        name, without = self.settings.bridge, []
        for node in self.online:
            try:
                found = self.api.get(f"nodes/{node}/network")
                if all(row["iface"] != name for row in found):  # one of the cluster's own networks
                    found = self.api.get(f"nodes/{node}/network", type="any_bridge")
            except ApiError as error:
                return Check("bridge", ok=False, text=f"{node} does not list them: {error.text}")
            there = {row["iface"]: row for row in found if row.get("type") in _BRIDGES}
            if name not in there:
                known = ", ".join(sorted(there)) or "none"
                without.append(f"{node} has no {name}; it has {known}")
            elif not int(there[name].get("active") or 0):
                without.append(f"{name} is not active on {node}")
        text = "; ".join(without) or f"{name} on {', '.join(self.online)}"
        return Check("bridge", ok=not without, text=text)

    def numbers(self) -> Check:
        first, last = self.settings.ids
        taken = sum(first <= number <= last for number in self.listing.guests)
        free = last - first + 1 - taken
        return Check("ids", ok=free > 0, text=f"{free} of {first}-{last} are free")


def _content(guest: Guest) -> str:
    return "rootdir" if guest.kind == "lxc" else "images"


def _wrong(node: str, row: dict[str, Any], holds: set[str]) -> str:
    """What is wrong with a storage on one node; nothing when it is as machines need it."""
    if not int(row.get("enabled", 1)) or not int(row.get("active", 1)):
        return f"not active on {node}"
    content = set(str(row.get("content") or "").split(","))
    # Of which kind machines will be may not be known: then either will do.
    lacks = holds - content if holds != _EITHER else holds if holds.isdisjoint(content) else ()
    return f"may not hold {' or '.join(sorted(lacks))} (Content of the storage)" if lacks else ""


def _words(error: EssaimError) -> str:
    return f"{error.what}\n{error.hint}" if error.hint else error.what
