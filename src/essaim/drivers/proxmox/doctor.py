"""What an account finds at a Proxmox VE cluster, and who must do what about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from essaim.drivers.doctor import Check
from essaim.drivers.proxmox import archives, guests, permissions, places
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.cluster import Cluster, Guest, first_storage
from essaim.drivers.proxmox.cluster_health import check_clocks, check_quorum
from essaim.drivers.proxmox.examination import Examination, not_asked, refused, words
from essaim.drivers.proxmox.reachability import check_reachable, hurried
from essaim.drivers.proxmox.resource_checks import (
    EITHER,
    check_bridges,
    check_pool,
    check_storages,
)
from essaim.drivers.proxmox.rights_check import check_rights, hidden_guests
from essaim.drivers.proxmox.settings import Settings
from essaim.drivers.proxmox.tls import fingerprint, shown_certificate
from essaim.model.errors import EssaimError, RejectedError, SiteAwayError
from essaim.model.spelling import meant
from essaim.model.stacks import Image

#: A certificate that expires sooner is told of.
_SOON = timedelta(days=30)
_SECONDS = 5.0
_SHOWN = 12
#: What an image names, and what of a storage that is.
_CONTENT = {"ostemplate": "vztmpl", "disk": "import", "iso": "iso"}


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
            version = str(api.get("version")["version"])
        except ApiError as error:
            text = words(error.ours(settings.site, "listing what there is"))
            return [*found, Check("cluster", ok=False, text=text)]
        its = Examination(api, listing, int(version.partition(".")[0]))
        return [*found, *_checks(its, images)]


def _servers(settings: Settings) -> Iterator[Check]:
    """Whether each server answers, is the right one, and knows the account."""
    for url in settings.urls:
        try:
            check_reachable(replace(settings, urls=(url,)))
        except SiteAwayError as error:
            yield Check("server", ok=False, text=f"{error.what}\n{_unreached(error, settings)}")
        except EssaimError as error:
            yield Check("server", ok=False, text=words(error) + _certificate(url, settings))
        else:
            soon = _expiry(url)
            yield Check("server", ok=True, text=f"{url} answers{soon}", warn=bool(soon))


def _unreached(error: SiteAwayError, settings: Settings) -> str:
    if "refuses" in error.what:
        return f"{error.hint}\n{permissions.renew(settings)}"
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


def _checks(its: Examination, images: Sequence[Image]) -> Iterator[Check]:
    yield check_quorum(its)
    yield from _nodes(its)
    yield check_clocks(its)
    yield from _stock(its, images)
    settings = its.settings
    if settings.storage:
        its.uses(settings.storage, *({_content(guest) for guest in its.templates} or EITHER))
    if settings.snippets:
        its.uses(settings.snippets, "snippets")
    its.cards.add((settings.bridge, str(settings.vlan or "")))
    yield from check_rights(its)
    yield from check_pool(its)
    yield from check_storages(its)
    yield from check_bridges(its)
    yield _numbers(its)


def _nodes(its: Examination) -> Iterator[Check]:
    known = its.listing.nodes
    for name in its.settings.nodes:
        if name not in known:
            near = meant(name, known, kind="there are")
            text = f"the site names {name}, which the cluster does not have; {near}"
            yield Check("nodes", ok=False, text=text)
    away = [name for name, node in sorted(known.items()) if not node.online]
    text = f"{', '.join(its.online) or 'none'} online"
    if away:
        text += f"; {', '.join(away)} does not answer: machines there wait for it"
    yield Check("nodes", ok=bool(its.online), text=text, warn=bool(away))


# What machines are made from


def _stock(its: Examination, images: Sequence[Image]) -> Iterator[Check]:
    if not images:
        there = sorted(
            f"{guest.name} ({guest.id}, {guest.kind})"
            for guest in its.listing.guests.values()
            if guest.template
        )
        shown = ", ".join(there[:_SHOWN]) + (", …" if len(there) > _SHOWN else "")
        text = shown or f"none that the account sees\n{_line_for_template(its)}"
        yield Check("templates", ok=True, text=text, warn=not there)
    for image in images:
        try:
            source, what = guests.source_of(image)
            found = _template(its, image, what) if source == "template" else None
            yield found or _volume(its, image, source, str(what))
        except RejectedError as error:
            yield Check("templates", ok=False, text=words(error))


def _template(its: Examination, image: Image, what: Any) -> Check:
    try:
        found = places.templates(its.listing, what, guests.kind_of(image), image.name)
    except RejectedError as error:
        unseen = [int(what)] if str(what).isdigit() else hidden_guests(its)
        its.unseen.update(number for number in unseen if number not in its.listing.guests)
        return Check("templates", ok=False, text=f"{words(error)}\n{_line_for_template(its)}")
    its.templates += found
    without = [guest for guest in found if not _boots_from(its, guest, image)]
    if without:
        ids = ", ".join(str(guest.id) for guest in without)
        text = f"{what} ({ids}) has no disk to boot from: give it one before it is cloned"
        return Check("templates", ok=False, text=text)
    where = ", ".join(f"{guest.id} on {guest.node}" for guest in found)
    return Check("templates", ok=True, text=f"{what}: {where}")


def _line_for_template(its: Examination) -> str:
    """How the account is let see a template of which only the administrator knows the id."""
    need = permissions.Need("/vms/ID", ("PVETemplateUser",), frozenset())
    line = permissions.grant(its.settings, need)
    return f"if {its.settings.who} may only not see it, on a node, with its id: {line}"


def _boots_from(its: Examination, guest: Guest, image: Image) -> str:
    """The storage of a template's disk; nothing when it has none."""
    try:
        config = its.api.get(f"{guest.path}/config")
    except ApiError:
        return "?"  # not for us to read; the rights say so
    storage = first_storage(config)
    if storage and not (image.settings.get("clone") == "full" and its.settings.storage):
        its.uses(storage, _content(guest))
    if guest.kind == "qemu" and not its.settings.snippets:
        its.agent |= str(config.get("agent") or "0").startswith(("1", "enabled=1"))
    its.cards.update(_cards(config))  # a clone begins with the cards of its template
    return storage


def _cards(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if key.startswith("net") and key[3:].isdigit():
            parts = dict(word.partition("=")[::2] for word in str(value).split(","))
            if parts.get("bridge"):
                yield parts["bridge"], parts.get("tag", "")


def _volume(its: Examination, image: Image, source: str, what: str) -> Check:
    """An archive, a disk image or a CD that machines are made from."""
    storage, content = what.partition(":")[0], _CONTENT[source]
    its.uses(storage, content)
    if not its.online:
        return not_asked("templates", what, "no node answers")
    path = f"nodes/{its.online[0]}/storage/{storage}/content"
    try:
        volumes = [str(row["volid"]) for row in its.api.get(path, content=content)]
    except ApiError as error:
        return refused("templates", f"{what} of image {image.name}", error)
    if source == "ostemplate" and archives.is_short(what):
        return Check("templates", ok=True, text=f"{what}: {archives.newest(what, volumes)}")
    if what in volumes:
        return Check("templates", ok=True, text=what)
    near = meant(what, volumes, kind="it has") or f"it has no {content} at all"
    text = f"image {image.name}: storage {storage} has no {what}\n{near}"
    return Check("templates", ok=False, text=text)


def _numbers(its: Examination) -> Check:
    first, last = its.settings.ids
    taken = sum(first <= number <= last for number in its.listing.guests)
    free = last - first + 1 - taken
    return Check("ids", ok=free > 0, text=f"{free} of {first}-{last} are free")


def _content(guest: Guest) -> str:
    return "rootdir" if guest.kind == "lxc" else "images"
