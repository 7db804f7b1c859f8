"""The builder `import`: a disk somebody else made, taken as it is.

Settings: `path` (of a qcow2, raw, vmdk, vdi or vhdx file, or an OVA; relative to the lab),
`sha256` (of that file), `format` (when its name does not tell), `compress`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.images.inside import require
from essaim.images.programs import disk_info, must, version
from essaim.model.errors import RejectedError, SetupError
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from essaim.images.builders import Job
    from essaim.model.stacks import Image

EDITION = ""

#: What the end of a file's name says about it.
FORMATS = {
    ".qcow2": "qcow2", ".raw": "raw", ".vmdk": "vmdk", ".vdi": "vdi", ".vhdx": "vhdx",
    ".ova": "ova",
}  # fmt: skip
_SETTINGS = {"summary", "path", "sha256", "format", "compress"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Kinds of vmdk that hold all their data themselves; others name files to read it from.
_WHOLE = ("monolithicSparse", "streamOptimized")
_MANIFEST = re.compile(r"SHA256\s*\(([^)]+)\)\s*=\s*([0-9a-f]{64})")
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 1 << 20


def check(image: Image) -> None:
    """See that the file is there and of a kind that can be read."""
    unknown = image.settings.keys() - _SETTINGS
    if unknown:
        raise RejectedError(
            f"image {image.name}: builder import knows no setting {min(unknown)}",
            hint=meant(min(unknown), _SETTINGS, kind="there are"),
        )
    _format(image)
    wanted = image.settings.get("sha256", "0" * 64)
    if not (isinstance(wanted, str) and _DIGEST.fullmatch(wanted)):
        raise RejectedError(f"image {image.name}: sha256 is 64 digits 0-9a-f, not {wanted!r}")
    require({"qemu-img": "qemu-utils"})


def _format(image: Image) -> str:
    path = source(image)
    known = sorted(set(FORMATS.values()))
    found = image.settings.get("format") or FORMATS.get(path.suffix.lower(), "")
    if found not in known:
        raise RejectedError(
            f"image {image.name}: what {path.name} is its name does not tell"
            if not found
            else f"image {image.name}: format {found!r} is not known",
            hint=f"format: one of {', '.join(known)}",
        )
    return str(found)


def source(image: Image) -> Path:
    """Give the file or folder the setting `path` names; RejectedError when there is none."""
    path = image.settings.get("path")
    if not isinstance(path, str) or not path:
        raise RejectedError(
            f"image {image.name}: `path` must say where it is", hint="a path relative to the lab"
        )
    if not Path(path).exists():
        raise RejectedError(
            f"image {image.name}: there is no {path}", hint="`path` is relative to the lab"
        )
    return Path(path)


def build(job: Job) -> dict[str, Any]:
    """Check the file's digest and make a qcow2 of it that needs no other file."""
    path, kind = source(job.image), _format(job.image)
    job.say(f"reading {path.name}")
    found = _digest(path)
    wanted = job.image.settings.get("sha256", found)
    if found != wanted:
        raise RejectedError(
            f"image {job.image.name}: {path.name} is not what was asked for: its sha256 is {found}",
            hint="get the file again, or correct `sha256`",
        )
    inner: dict[str, str] = {}
    if kind == "ova":
        path, inner = _unpack(job, path)
        kind = "vmdk"
    convert(job, path, kind, compress=bool(job.image.settings.get("compress", False)))
    if inner:
        path.unlink()
    return {"source": {"sha256": found, **inner}, "tools": {"qemu-img": version("qemu-img")}}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert(job: Job, path: Path, kind: str, *, compress: bool) -> None:
    """Make `job.result` from a disk, unless that would read other files than this one."""
    job.say(f"converting {path.name}")
    if kind == "raw" and _begins(path, b"QFI\xfb"):
        raise RejectedError(
            f"image {job.image.name}: {path.name} is no raw disk", hint="format: qcow2"
        )
    try:
        info = disk_info(path, kind)
    except SetupError as error:
        raise RejectedError(f"image {job.image.name}: {error}", hint="is it complete?") from error
    _check_alone(job, path, info)
    how = ["-c"] if compress else []
    must(
        job, "qemu-img", "convert", "-q", "-f", kind, "-O", "qcow2", *how,
        "-o", "compat=1.1", str(path), str(job.result),
    )  # fmt: skip


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _check_alone(job: Job, path: Path, info: Mapping[str, Any]) -> None:
    """A disk that names other files to read could name anybody's."""
    specific = info.get("format-specific", {}).get("data", {})
    others = info.get("backing-filename") or specific.get("data-file")
    kind = specific.get("create-type", _WHOLE[0])
    if others or kind not in _WHOLE:
        raise RejectedError(
            f"image {job.image.name}: {path.name} is only a part of a disk",
            hint=f"make one file of it: qemu-img convert -O qcow2 {path.name} whole.qcow2",
        )


def _unpack(job: Job, ova: Path) -> tuple[Path, dict[str, str]]:
    """Take the one disk out of an OVA, and check it against the archive's own manifest."""
    target = job.home / "inner.vmdk"
    try:
        with tarfile.open(ova) as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            disks = [member for member in members if member.name.lower().endswith(".vmdk")]
            if len(disks) != 1:
                raise RejectedError(
                    f"image {job.image.name}: {ova.name} holds {len(disks)} disks, not one",
                    hint="machines have one disk each: convert the right one to qcow2 by hand",
                )
            job.say(f"unpacking {Path(disks[0].name).name}")
            found = _copy(archive.extractfile(disks[0]), target)
            wanted = _manifest(archive, members).get(disks[0].name, found)
    except tarfile.TarError as error:
        raise RejectedError(
            f"image {job.image.name}: {ova.name} is no OVA: {error}", hint="is it complete?"
        ) from error
    if found != wanted:
        raise RejectedError(
            f"image {job.image.name}: the disk in {ova.name} is not the one its manifest tells of",
            hint="get the file again",
        )
    return target, {"disk": disks[0].name, "disk_sha256": found}


def _copy(member: IO[bytes] | None, target: Path) -> str:
    """Write a member's content to a place of our choosing; gives its digest."""
    assert member is not None  # noqa: S101 - it is a plain file
    with member, target.open("wb") as out:
        shutil.copyfileobj(member, out, _CHUNK)
    return _digest(target)


def _manifest(archive: tarfile.TarFile, members: list[tarfile.TarInfo]) -> dict[str, str]:
    for member in members:
        if member.name.lower().endswith(".mf") and member.size < _LARGEST_MANIFEST:
            text = archive.extractfile(member)
            assert text is not None  # noqa: S101 - it is a plain file
            return dict(_MANIFEST.findall(text.read().decode(errors="replace")))
    return {}
