"""The image cache: built once for each digest, whoever asks, and whole or not there at all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.images import debian
from essaim.images.inside import check_tools, environment, is_rootless, remove_tree
from essaim.model.errors import RejectedError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from essaim.model.stacks import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image in the cache.  `manifest` says what it was made from and with."""

    name: str
    digest: str
    path: Path  #: of the root file system
    built_at: str
    seconds: float
    manifest: dict[str, Any]


class Images:
    """Images below `cache`.  Root's and a plain user's are kept apart: their owners differ.

    Downloaded packages are in `archives` and may be deleted at any time.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache.absolute()

    def _key(self, image: Image) -> str:
        digest = re.sub(r"[^A-Za-z0-9.-]", "-", image.digest)
        return f"{digest}-{'rootless' if is_rootless() else 'root'}"

    def ready(self, image: Image) -> Path | None:
        """Find the image's root file system; None until it has been built."""
        home = self._cache / self._key(image)
        return home / "rootfs" if (home / "manifest.json").exists() else None

    def build(self, image: Image, progress: Callable[[str], None]) -> Path:
        """Build the image unless it is there; if somebody else is building it, wait for that."""
        if there := self.ready(image):
            return there
        if image.builder != "debian":
            raise RejectedError(
                f"image {image.name}: builder {image.builder!r} is not known", hint="use debian"
            )
        check_tools()
        wanted = debian.recipe(image.name, image.settings)
        with self._locked(image, progress) as lock:
            if there := self.ready(image):
                return there
            return self._build(image, wanted, lock, progress)

    def _build(
        self, image: Image, wanted: debian.Recipe, lock: int, progress: Callable[[str], None]
    ) -> Path:
        began = time.time()
        home = self._cache / self._key(image)
        fresh = self._cache / f".new-{home.name}"
        for leftover in (fresh, home):
            remove_tree(leftover)
        archives = self._cache / "archives"
        for directory in (fresh, archives, self._cache / "logs"):
            directory.mkdir(parents=True, exist_ok=True)
        log = self._cache / "logs" / f"{home.name}.log"
        root = fresh / "rootfs"
        try:
            debian.build(
                image.name, wanted, target=root, archives=archives, log=log, lock=lock, say=progress
            )
            _check(image, root)
            _write(fresh / "manifest.json", _manifest(image, wanted, root, began))
            # The manifest must not outlast a power cut that the files before it did not.
            subprocess.run(["sync", "-f", str(fresh)], check=False)
            fresh.rename(home)
        except OSError as error:
            raise SetupError(f"image {image.name}: {error}", hint="is the disk full?") from error
        finally:
            remove_tree(fresh)
        return home / "rootfs"

    @contextmanager
    def _locked(self, image: Image, progress: Callable[[str], None]) -> Iterator[int]:
        locks = self._cache / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        fd = os.open(locks / self._key(image), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting for another build of {image.name}")
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def list(self) -> list[Built]:
        """Every image that is ready, by name."""
        found = []
        for path in self._cache.glob("[!.]*/manifest.json"):
            manifest = json.loads(path.read_bytes())
            found.append(
                Built(
                    name=manifest["name"],
                    digest=manifest["digest"],
                    path=path.parent / "rootfs",
                    built_at=manifest["built_at"],
                    seconds=manifest["seconds"],
                    manifest=manifest,
                )
            )
        return sorted(found, key=lambda built: (built.name, built.built_at))

    def remove(self, name: str) -> int:
        """Remove all images of that name; how many there were.

        Machines made from them cannot start any more: the caller sees to it that there are none.
        """
        doomed = [built.path.parent for built in self.list() if built.name == name]
        for home in doomed:
            hidden = home.with_name(f".gone-{home.name}")
            remove_tree(hidden)
            home.rename(hidden)
            remove_tree(hidden)
        return len(doomed)


def _check(image: Image, root: Path) -> None:
    if not (root / "usr/sbin/sshd").exists():
        raise RejectedError(
            f"image {image.name} has no sshd", hint="add openssh-server to its packages"
        )


def _manifest(image: Image, wanted: debian.Recipe, root: Path, began: float) -> dict[str, Any]:
    return {
        "name": image.name,
        "digest": image.digest,
        "builder": image.builder,
        "settings": dict(image.settings),
        "sources": list(wanted.sources),
        "mode": "rootless" if is_rootless() else "root",
        "tools": {tool: _version(tool) for tool in ("mmdebstrap", "apt-get", "dpkg")},
        "packages": _packages(root),
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(time.time() - began, 1),
    }


def _run(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=True
    ).stdout


def _version(tool: str) -> str:
    if shutil.which(tool) is None:
        return ""
    return _run(tool, "--version").partition("\n")[0].strip()


def _packages(root: Path) -> dict[str, str]:
    text = _run(
        "dpkg-query",
        f"--admindir={root}/var/lib/dpkg",
        "--show",
        "--showformat=${Package} ${Version}\n",
    )
    return dict(line.split(" ", 1) for line in text.splitlines())


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
