"""The image cache: built once for each digest, whoever asks, and whole or not there at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.images.builders import RESULT, Builder, Job, builder_of
from essaim.images.inside import is_rootless, remove_tree
from essaim.images.programs import disk_info
from essaim.model.errors import RejectedError, SetupError
from essaim.model.machines import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from essaim.model.stacks import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image in the cache.  `manifest` says what it was made from and with."""

    name: str
    digest: str
    form: Form
    path: Path  #: of the root file system or the disk
    size: int  #: bytes it takes here
    built_at: str
    seconds: float
    manifest: dict[str, Any]


class Images:
    """Images below `cache`.  Root's and a plain user's are kept apart: their owners differ.

    Downloaded packages are in `archives` and may be deleted at any time.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache.absolute()

    def _home(self, image: Image, form: Form, builder: Builder) -> Path:
        digest = re.sub(r"[^A-Za-z0-9.-]", "-", image.digest)
        form_word = "" if form is Form.ROOTFS else f"{form}-"
        edition = f"{builder.EDITION}-" if builder.EDITION else ""
        whose = "rootless" if is_rootless() else "root"
        return self._cache / f"{digest}-{form_word}{edition}{whose}"

    def ready(self, image: Image, form: Form = Form.ROOTFS) -> Path | None:
        """Find the image in that form; None until it has been built, or when it cannot be."""
        try:
            builder = builder_of(image, form)
        except RejectedError:
            return None  # `build` says why; whoever only looks need not fail
        return _found(self._home(image, form, builder), form)

    def build(
        self, image: Image, progress: Callable[[str], None], form: Form = Form.ROOTFS
    ) -> Path:
        """Build the image unless it is there; if somebody else is building it, wait for that."""
        builder = builder_of(image, form)
        home = self._home(image, form, builder)
        if there := _found(home, form):
            return there
        builder.check(image)
        with self._locked(home, image, progress) as lock:
            if there := _found(home, form):
                return there
            job = Job(
                image=image,
                form=form,
                home=self._cache / f".new-{home.name}",
                archives=self._cache / "archives",
                log=self._cache / "logs" / f"{home.name}.log",
                lock=lock,
                say=progress,
            )
            return _build(builder, job, home)

    @contextmanager
    def _locked(self, home: Path, image: Image, progress: Callable[[str], None]) -> Iterator[int]:
        locks = self._cache / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        fd = os.open(locks / home.name, os.O_RDWR | os.O_CREAT, 0o600)
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
        found = [_built(path) for path in self._cache.glob("[!.]*/manifest.json")]
        return sorted(found, key=lambda built: (built.name, built.form, built.built_at))

    def remove(self, name: str) -> int:
        """Remove all images of that name, in every form; how many there were.

        Machines made from them cannot start any more: the caller sees to it that there are none.
        """
        doomed = [built.path.parent for built in self.list() if built.name == name]
        for home in doomed:
            hidden = home.with_name(f".gone-{home.name}")
            remove_tree(hidden)
            home.rename(hidden)
            remove_tree(hidden)
        return len(doomed)


def _found(home: Path, form: Form) -> Path | None:
    return home / RESULT[form] if (home / "manifest.json").exists() else None


def _build(builder: Builder, job: Job, home: Path) -> Path:
    began = time.time()
    for leftover in (job.home, home):
        remove_tree(leftover)
    try:
        for directory in (job.home, job.archives, job.log.parent):
            directory.mkdir(parents=True, exist_ok=True)
        job.log.write_bytes(b"")
        made = builder.build(job)
        _write(job.home / "manifest.json", _manifest(job, made, began))
        # The manifest must not outlast a power cut that the files before it did not.
        subprocess.run(["sync", "-f", str(job.home)], check=False)
        job.home.rename(home)
    except OSError as error:
        raise SetupError(f"image {job.image.name}: {error}", hint="is the disk full?") from error
    finally:
        remove_tree(job.home)
    return home / RESULT[job.form]


def _built(path: Path) -> Built:
    manifest = json.loads(path.read_bytes())
    form = Form(manifest.get("form", Form.ROOTFS))
    return Built(
        name=manifest["name"],
        digest=manifest["digest"],
        form=form,
        path=path.parent / RESULT[form],
        size=manifest.get("size", 0),
        built_at=manifest["built_at"],
        seconds=manifest["seconds"],
        manifest=manifest,
    )


def _manifest(job: Job, made: Mapping[str, Any], began: float) -> dict[str, Any]:
    disk = _disk_facts(job.result) if job.form is Form.DISK else {}
    return {
        "name": job.image.name,
        "digest": job.image.digest,
        "builder": job.image.builder,
        "form": job.form,
        "settings": dict(job.image.settings),
        "mode": "rootless" if is_rootless() else "root",
        **made,
        "size": _size(job.result),
        **disk,
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(time.time() - began, 1),
    }


def _disk_facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "virtual_size": disk_info(path)["virtual-size"]}


def _size(path: Path) -> int:
    """Tell how many bytes a file or a folder takes; what others' folders hide is not counted."""
    if path.is_file():
        return path.stat().st_size
    done = subprocess.run(
        ["du", "--bytes", "--summarize", str(path)], capture_output=True, text=True, check=False
    )
    return int(done.stdout.split()[0]) if done.stdout else 0


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
