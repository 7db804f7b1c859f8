"""What differs between two locks, in words: what was locked, and what would be made now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from essaim.plan.digest import RoleDigests
from essaim.plan.lock import Lock, LockedImage, LockedNode

#: More names than this in one sentence are not read.
SHOWN = 5
_SHORT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as locked."""

    #: For programs: file, configuration, image, machine, role, identity, package, content, step,
    #: ready, key, composed.
    kind: str
    at: str  #: a file of the description, a key, `image NAME` or a machine
    what: str  #: in words, to be read after `at`


def differences(locked: Lock, now: Lock) -> list[Difference]:
    """List what differs between a lock and one made now; nothing when they mean the same.

    What the lock says may differ is left out, and so are images that are not built here.
    """
    found = [
        *_files(locked.files, now.files),
        *_configuration(locked.configuration, now.configuration),
        *_images(locked.images, now.images),
        *_nodes(locked, now),
    ]
    if not found and locked.wanted != now.wanted:
        what = "is not what was locked, though no file or value differs: other versions read it"
        found.append(Difference(kind="composed", at=f"stack {now.stack}", what=what))
    return found


def tool_notes(locked: Lock, now: Lock) -> list[str]:
    """Say which tools have other versions than those the lock was made with."""
    return [
        f"{name} {now.tools[name]} here, {version} when the lock was made"
        for name, version in sorted(locked.tools.items())
        if name in now.tools and now.tools[name] != version
    ]


def few(words: Sequence[str]) -> str:
    """Join words, the first of them when there are many."""
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def short(digest: str) -> str:
    """Shorten a digest to what people compare by eye."""
    return digest[:_SHORT] or "nothing"


def package_words(locked: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Say what packages are missing, of another version, or more than were locked."""
    changed = sorted(name for name in locked.keys() & now.keys() if locked[name] != now[name])
    if changed:
        words = [f"{name} {now[name]} (not {locked[name]})" for name in changed]
        yield f"has other versions: {few(words)}"
    if missing := sorted(locked.keys() - now.keys()):
        yield f"lacks packages: {few([f'{name} {locked[name]}' for name in missing])}"
    if extra := sorted(now.keys() - locked.keys()):
        yield f"has packages the lock does not: {few([f'{name} {now[name]}' for name in extra])}"


def _files(locked: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for name in sorted(locked.keys() | now.keys()):
        if name not in now:
            what = "is gone, or no longer used"
        elif name not in locked:
            what = "was not there, or not used, when the lock was made"
        elif locked[name] != now[name]:
            what = "has changed since the lock"
        else:
            continue
        yield Difference(kind="file", at=name, what=what)


def _configuration(locked: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = dict(_leaves(locked)), dict(_leaves(now))
    for key in sorted(before.keys() | after.keys()):
        if key not in after:
            what = f"is no longer set; the lock has {before[key]!r}"
        elif key not in before:
            what = f"is {after[key]!r}; the lock does not have it"
        elif before[key] != after[key]:
            what = f"is {after[key]!r}; the lock has {before[key]!r}"
        else:
            continue
        yield Difference(kind="configuration", at=key, what=what)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not path):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _images(
    locked: Mapping[str, LockedImage], now: Mapping[str, LockedImage]
) -> Iterator[Difference]:
    for name in sorted(locked.keys() | now.keys()):
        if name not in now:
            said = ["is no longer used"]
        elif name not in locked:
            said = ["is not in the lock"]
        else:
            said = list(_image(locked[name], now[name]))
        for what in said:
            yield Difference(kind="image", at=f"image {name}", what=what)


def _image(locked: LockedImage, now: LockedImage) -> Iterator[str]:
    if (locked.builder, locked.form) != (now.builder, now.form):
        yield (
            f"is a {now.form} made by {now.builder}, not a {locked.form} made by {locked.builder}"
        )
        return
    if locked.description != now.description:
        yield f"is described otherwise: {short(now.description)}, not {short(locked.description)}"
    if not now.content or locked.content == now.content:
        return
    yield f"was built to other content: {short(now.content)}, not {short(locked.content)}"
    said = list(package_words(locked.packages, now.packages))
    said += [
        f"rests on another {key}"
        for key in sorted(locked.inputs.keys() | now.inputs.keys())
        if locked.inputs.get(key) != now.inputs.get(key)
    ]
    yield from said or ["has the same packages and inputs: it was built anew, or changed by hand"]


def _nodes(locked: Lock, now: Lock) -> Iterator[Difference]:
    for name in sorted(locked.nodes.keys() ^ now.nodes.keys()):
        what = "is not in the lock" if name in now.nodes else "is in the lock, but not described"
        yield Difference(kind="machine", at=f"{locked.stack}/{name}", what=what)
    both = [(n, locked.nodes[n], now.nodes[n]) for n in sorted(locked.nodes.keys() & now.nodes)]
    for name, before, after in both:
        for what in _node(before, after):
            yield Difference(kind="machine", at=f"{locked.stack}/{name}", what=what)
    yield from _folded(locked.stack, "role", both, _roles)
    yield from _folded(locked.stack, "content", both, _written)


def _node(locked: LockedNode, now: LockedNode) -> Iterator[str]:
    if (locked.hostname, locked.address) != (now.hostname, now.address):
        yield (
            f"would be {now.hostname} at {now.address}, not {locked.hostname} at {locked.address}"
        )
    elif locked.seed != now.seed:
        yield "would be told other things at first boot"
    if locked.image != now.image:
        yield f"would be made from image {now.image}, not {locked.image}"
    if locked.size != now.size:
        yield f"would have {_size(now.size)}, not {_size(locked.size)}"
    if locked.roles != now.roles:
        yield (
            f"would carry {', '.join(now.roles) or 'no role'}, "
            f"not {', '.join(locked.roles) or 'no role'}"
        )


def _size(size: Mapping[str, int]) -> str:
    return f"{size['cores']} cores, {size['memory']} MiB and {size['disk']} GiB"


def _roles(locked: LockedNode, now: LockedNode) -> Iterator[str]:
    for role in sorted(locked.digests.keys() & now.digests.keys()):
        words = RoleDigests.differences(locked.digests[role], now.digests[role])
        if words:
            yield f"role {role} would be applied otherwise: {', '.join(words)}"


def _written(locked: LockedNode, now: LockedNode) -> Iterator[str]:
    """Files that come out otherwise though their role is the same, whatever the reason."""
    for path in sorted(locked.files.keys() & now.files.keys()):
        before, after = locked.files[path], now.files[path]
        same = locked.digests.get(after.role) == now.digests.get(after.role)
        if before != after and same:
            yield f"{path} would be written otherwise, though role {after.role} is the same"


def _folded(
    stack: str,
    kind: str,
    both: Iterable[tuple[str, LockedNode, LockedNode]],
    say: Callable[[LockedNode, LockedNode], Iterator[str]],
) -> Iterator[Difference]:
    """Say what holds for many machines once."""
    who: dict[str, list[str]] = defaultdict(list)
    for name, before, after in both:
        for what in say(before, after):
            who[what].append(name)
    for what, names in who.items():
        yield Difference(kind=kind, at=f"{stack}/{few(names)}", what=what)
