"""Build a Debian root file system with mmdebstrap, as root or as a plain user.

Settings: `suite`, `packages`, `commands` (argument lists run inside, in order), `remove` (paths
deleted at the end, with * and ?: secrets that packages bake in), `mirror`, `components`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.images.inside import as_root
from essaim.images.programs import run
from essaim.images.progress import Progress
from essaim.images.sources import sources_for
from essaim.model.errors import EssaimError, RejectedError, SetupError

if TYPE_CHECKING:
    from pathlib import Path

_WORD = re.compile(r"[a-z][a-z0-9-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?")
_PATTERN = re.compile(r"(?:/[A-Za-z0-9_+@=,.*?-]+)+")
#: Two machines with one key would each be able to pose as the other.
_ALWAYS_REMOVED = ("/etc/ssh/ssh_host_*",)
_INSIDE = (
    "env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)  # fmt: skip
_TAIL = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of an image, checked."""

    suite: str
    packages: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    remove: tuple[str, ...]
    sources: tuple[str, ...]


def recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    """Check an image's settings; RejectedError names the one that is wrong."""
    suite = settings.get("suite", "")
    if not (isinstance(suite, str) and _WORD.fullmatch(suite)):
        raise RejectedError(f"image {name}: suite {suite!r} is not the name of a Debian release")
    packages = tuple(_strings(name, settings, "packages", _PACKAGE))
    remove = tuple(_strings(name, settings, "remove", _PATTERN))
    if any(".." in path.split("/") for path in remove):
        raise RejectedError(f"image {name}: remove may not hold ..")
    commands = settings.get("commands", ())
    if not all(_is_arguments(command) for command in commands):
        raise RejectedError(
            f"image {name}: commands must be lists of arguments",
            hint='for example [["update-alternatives", "--auto", "editor"]]',
        )
    return Recipe(
        suite=suite,
        packages=packages,
        commands=tuple(tuple(command) for command in commands),
        remove=remove,
        sources=tuple(sources_for(suite, settings)),
    )


def _strings(
    name: str, settings: Mapping[str, Any], key: str, wanted: re.Pattern[str]
) -> Iterator[str]:
    for value in settings.get(key, ()):
        if not (isinstance(value, str) and wanted.fullmatch(value)):
            raise RejectedError(f"image {name}: {key}: {value!r} is not understood")
        yield value


def _is_arguments(command: object) -> bool:
    return (
        isinstance(command, Sequence)
        and not isinstance(command, str)
        and bool(command)
        and all(isinstance(word, str) for word in command)
    )


def build(
    name: str,
    wanted: Recipe,
    *,
    target: Path,
    archives: Path,
    log: Path,
    lock: int,
    say: Callable[[str], None],
    env: Mapping[str, str] | None = None,
) -> None:
    """Make the root file system in `target`, which must not exist.

    `lock` is inherited by the build, so that it stays held until the last of it has ended.
    """
    progress = Progress(say, len(wanted.commands))
    command = as_root(*_command(wanted, target, archives))
    code, lines = run(command, log=log, lock=lock, heard=progress.line, env=env, own_group=True)
    if code:
        raise explain(name, wanted.suite, lines, log)


def _command(wanted: Recipe, target: Path, archives: Path) -> Iterator[str]:
    kept = shlex.quote(str(archives))
    yield from ("mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory")
    yield "--dpkgopt=force-unsafe-io"  # an interrupted build is thrown away anyway
    # Downloads are shared by all images through hard links.
    yield "--skip=essential/unlink"
    yield (
        '--setup-hook=mkdir -p "$1/var/cache/apt/archives"; '
        f'cp -al {kept}/. "$1/var/cache/apt/archives/" || true'
    )
    # Some packages' scripts look up the name of the computer they are installed on.
    yield '--essential-hook=echo "127.0.0.1 localhost $(hostname)" >"$1/etc/hosts"'
    yield f'--customize-hook=cp -aln "$1"/var/cache/apt/archives/*.deb {kept}/ || true'
    for command in wanted.commands:
        yield f'--customize-hook=chroot "$1" {shlex.join((*_INSIDE, *command))}'
    for path in (*_ALWAYS_REMOVED, *wanted.remove):
        yield f'--customize-hook=rm -rf -- "$1"{path}'
    yield '--customize-hook=echo "127.0.0.1 localhost" >"$1/etc/hosts"'
    yield '--customize-hook=echo localhost >"$1/etc/hostname"; : >"$1/etc/resolv.conf"'
    if wanted.packages:
        yield f"--include={','.join(wanted.packages)}"
    yield from (wanted.suite, str(target), *wanted.sources)


def explain(name: str, suite: str, lines: list[str], log: Path) -> EssaimError:
    """Say why a build failed: what apt said last, and what to do."""
    text = "\n".join(lines)
    if missing := re.findall(r"E: Unable to locate package (\S+)", text):
        return RejectedError(
            f"image {name}: Debian {suite} has no package {', '.join(dict.fromkeys(missing))}",
            hint="correct `packages` in the image's description",
        )
    if not any(line.startswith("I: ") for line in lines):
        return SetupError(
            f"image {name}: builds cannot run here:\n{text}", hint="run `essaim doctor`"
        )
    useful = [
        line for line in lines if re.match(r"(E|Err|W: Failed|dpkg: error|newuidmap)\b", line)
    ]
    said = "\n".join((useful or lines)[-_TAIL:])
    if re.search(r"No space left on device|don't have enough free space", text):
        return SetupError(f"image {name}: the disk is full", hint=f"free some space; see {log}")
    if re.search(r"Failed to fetch|Could not (resolve|connect)|Temporary failure", text):
        return SetupError(
            f"image {name}: the Debian mirror cannot be reached:\n{said}",
            hint="check the network, the proxy and the mirror, then build again",
        )
    return RejectedError(f"image {name} cannot be built:\n{said}", hint=f"see {log}")
