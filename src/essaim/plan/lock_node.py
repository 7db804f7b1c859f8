"""Whether a running machine is what its lock says, judged from what was seen on it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from essaim.model.machines import Observed, Power
from essaim.plan.digest import RoleDigests
from essaim.plan.lock import LockedFile, LockedImage, LockedNode, seed_digest
from essaim.plan.lock_compare import Difference, few, package_words, short

# `??5?????? c /etc/motd`: nine tests, of which the third is the content's; `c` for a setting.
_VERIFIED = re.compile(r"(missing|[?.]{2}5[?.]{6}) +(?:[a-z] )?(/.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFile:
    """A path on a machine."""

    kind: str  #: file, link, other, absent
    sha256: str = ""
    mode: str = ""
    owner: str = ""
    group: str = ""
    own_group: str = ""  #: of its owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a machine says of itself."""

    hostname: str
    addresses: tuple[str, ...]  #: each with the length of its prefix
    packages: Mapping[str, str] | None  #: None where nobody keeps a list of them
    provides: Mapping[str, frozenset[str]] = field(default_factory=dict)  #: by package: others
    files: Mapping[str, SeenFile]
    #: Files that are not as their packages have them; None where nobody can tell.
    altered: frozenset[str] | None = None
    keys: tuple[str, ...] = ()  #: fingerprints of those that may log in as root


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a machine must be like, beyond its lock."""

    contents: Mapping[str, str] = field(default_factory=dict)  #: of files the lock does not pin
    keys: frozenset[str] = frozenset()  #: fingerprints of keys that may log in
    packages: frozenset[str] = frozenset()  #: that roles install, if the image lacks them


def altered_paths(lines: Iterable[str]) -> Iterator[str]:
    """Read what `dpkg --verify` prints: files that are missing or not as their packages have them.

    What is missing below /usr/share is left out: small images do without documentation.
    """
    for line in lines:
        found = _VERIFIED.fullmatch(line)
        if found and not (found[1] == "missing" and found[2].startswith("/usr/share/")):
            yield found[2]


def standing(
    name: str,
    node: LockedNode,
    image: LockedImage,
    seen: Observed | None,
    known: Mapping[str, str],
) -> Iterator[Difference]:
    """Say how a machine stands with its driver; `known` names images by their digests."""
    if seen is None:
        yield Difference(kind="machine", at=name, what="is not there")
        return
    if seen.power is not Power.ON:
        yield Difference(kind="machine", at=name, what="is off")
    address = node.address.partition("/")[0]
    if seen.address != address:
        what = f"was given address {seen.address}, not {address}"
        yield Difference(kind="machine", at=name, what=what)
    if seen.image != image.description:
        other = known.get(seen.image, "of another description")
        what = (
            f"is made from another image: {other} ({short(seen.image)}), "
            f"not {node.image} ({short(image.description)})"
        )
        yield Difference(kind="image", at=name, what=what)
    content = seen.detail.get("content", "")
    if content and image.content and content != image.content:
        what = (
            f"is made from another build of image {node.image}: "
            f"{short(content)}, not {short(image.content)}"
        )
        yield Difference(kind="image", at=name, what=what)


def applied(name: str, node: LockedNode, records: Mapping[str, str]) -> Iterator[Difference]:
    """Say which roles were applied in another state than the lock's; `records`: their digests."""
    for role in node.roles:
        if role not in records:
            yield Difference(kind="role", at=name, what=f"role {role} was never applied in full")
            continue
        words = RoleDigests.differences(node.digests[role], records[role])
        if words:
            what = f"role {role} was applied in another state: {', '.join(words)}"
            yield Difference(kind="role", at=name, what=what)
    for role in sorted(records.keys() - set(node.roles)):
        yield Difference(kind="role", at=name, what=f"role {role} is not in the lock")


def inside(
    name: str, node: LockedNode, image: LockedImage, seen: Seen, expected: Expected
) -> Iterator[Difference]:
    """Say what differs inside a machine: its identity, its packages, its files, its keys."""
    for what in _identity(node, seen):
        yield Difference(kind="identity", at=name, what=what)
    for what in _packages(image, seen, expected.packages):
        yield Difference(kind="package", at=name, what=what)
    for path, file in sorted(node.files.items()):
        sha256 = file.sha256 or expected.contents.get(path, "")
        for what in file_differences(path, file, seen.files.get(path), sha256):
            yield Difference(kind="content", at=name, what=what)
    if changed := _altered(node, image, seen):
        what = f"has files that are not as their packages have them: {few(changed)}"
        yield Difference(kind="altered", at=name, what=what)
    for key in sorted(set(seen.keys) - expected.keys) if expected.keys else ():
        what = f"lets in a key that Essaim did not put there: {key}"
        yield Difference(kind="key", at=name, what=what)


def _identity(node: LockedNode, seen: Seen) -> Iterator[str]:
    if node.seed in [seed_digest(seen.hostname, address) for address in seen.addresses]:
        return
    if seen.hostname != node.hostname:
        yield f"calls itself {seen.hostname}, not {node.hostname}"
    if seen.addresses and node.address not in seen.addresses:
        others = ", ".join(a for a in seen.addresses if not a.startswith("127."))
        yield f"has not the address {node.address} but {others or 'none'}"


def _packages(image: LockedImage, seen: Seen, free: Collection[str]) -> Iterator[str]:
    if not image.packages:
        return
    if seen.packages is None:
        # Only Debian's own tools keep such a list; an image may hold packages without them.
        if image.builder == "debian":
            yield "keeps no list of its packages any more"
        return
    held = image.packages.keys() | _provided(seen, image.packages)
    lacking = {name for name in free if name not in held}
    now = dict(seen.packages)
    if lacking:
        # What a role fetched brings others along, which only the day it was fetched on knows.
        now = {name: version for name, version in now.items() if name in image.packages}
    yield from package_words(image.packages, now)
    if missing := sorted(lacking - seen.packages.keys() - _provided(seen, seen.packages)):
        yield f"lacks packages that its roles install: {', '.join(missing)}"


def _altered(node: LockedNode, image: LockedImage, seen: Seen) -> list[str]:
    """Files of packages that neither the image nor a role has changed."""
    if image.altered is None or seen.altered is None:
        return []
    return sorted(seen.altered - set(image.altered) - node.files.keys())


def _provided(seen: Seen, by: Collection[str]) -> set[str]:
    return {name for package, names in seen.provides.items() if package in by for name in names}


def file_differences(
    path: str, file: LockedFile, seen: SeenFile | None, sha256: str
) -> Iterator[str]:
    """Say how a file differs from what its role writes; `sha256` of the content, if known."""
    if seen is None or seen.kind == "absent":
        yield f"{path} is gone; role {file.role} puts it there"
        return
    if seen.kind != "file":
        kind = "a symbolic link" if seen.kind == "link" else "no file"
        yield f"{path} is {kind} now; role {file.role} puts a file there"
        return
    if sha256 and seen.sha256 != sha256:
        yield f"{path} does not hold what role {file.role} writes there"
    if seen.mode != file.mode:
        yield f"{path} has mode {seen.mode}, not {file.mode}"
    if seen.owner != file.owner:
        yield f"{path} belongs to {seen.owner}, not {file.owner}"
    elif seen.group != (file.group or seen.own_group):
        yield f"{path} belongs to group {seen.group}, not {file.group or seen.own_group}"
