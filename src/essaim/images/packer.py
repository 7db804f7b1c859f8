"""The builder `packer`: a disk made by a template of HashiCorp Packer.

Settings: `path` (of the template, or a folder of them; relative to the lab), `vars` (by name).
The template's folder is copied and Packer runs in the copy, so that what it leaves is left there;
`${path.root}` and relative paths mean the copy.  Variables `PKR_VAR_…` and `PACKER_…` of the
environment are handed on: secrets go that way.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.images.imported import convert, source
from essaim.images.inside import as_root, environment, require
from essaim.images.programs import disk_info, run, version
from essaim.model.errors import RejectedError, SetupError
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from essaim.images.builders import Job
    from essaim.model.stacks import Image

EDITION = ""

_SETTINGS = {"summary", "path", "vars", "compress"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TAIL = 12


def check(image: Image) -> None:
    """See that there is a template, and Packer to read it."""
    unknown = image.settings.keys() - _SETTINGS
    if unknown:
        raise RejectedError(
            f"image {image.name}: builder packer knows no setting {min(unknown)}",
            hint=meant(min(unknown), _SETTINGS, kind="there are"),
        )
    source(image)
    list(_vars(image))
    if shutil.which("packer", path=environment()["PATH"]) is None:
        raise SetupError(
            f"image {image.name}: packer is not installed",
            hint="sudo apt-get install packer, or put the program of "
            "https://developer.hashicorp.com/packer/install on PATH",
        )
    require({"qemu-img": "qemu-utils", "unshare": "util-linux", "setpriv": "util-linux"})


def _vars(image: Image) -> Iterator[str]:
    given = image.settings.get("vars", {})
    if not isinstance(given, dict):
        raise RejectedError(f"image {image.name}: vars must be values by name")
    for name, value in given.items():
        if not _NAME.fullmatch(str(name)) or not isinstance(value, str | int | float):
            raise RejectedError(f"image {image.name}: vars: {name}: {value!r} is not understood")
        yield f"-var={name}={value}"


def build(job: Job) -> dict[str, Any]:
    """Run the template and take the one disk it makes."""
    path = source(job.image)
    work = job.home / "work"
    shutil.copytree(path if path.is_dir() else path.parent, work, symlinks=True)
    template = "." if path.is_dir() else path.name
    if path.is_dir() or path.name.endswith((".pkr.hcl", ".pkr.json")):
        _packer(job, work, "init", template)
    lines = _packer(job, work, "build", *_vars(job.image), template)
    disk = _artifact(job, work, lines)
    convert(job, disk, "qcow2", compress=bool(job.image.settings.get("compress", False)))
    shutil.rmtree(work)
    tools = {tool: version(tool) for tool in ("packer", "qemu-img")}
    return {"template": path.name, "tools": tools}


def _packer(job: Job, work: Path, verb: str, *words: str) -> list[str]:
    handed_on = {
        key: value
        for key, value in os.environ.items()
        if key.startswith(("PKR_VAR_", "PACKER_")) or key == "HOME"
    }
    env = {
        "PACKER_CACHE_DIR": str(job.archives.with_name("packer")),
        "CHECKPOINT_DISABLE": "1",
        **handed_on,
    }

    def heard(line: str) -> None:
        if text := _said(line):
            job.say(text)

    job.say(f"packer {verb}")
    options = () if verb == "init" else ("-machine-readable", "-color=false")
    command = as_root("packer", verb, *options, *words)
    code, lines = run(command, log=job.log, lock=job.lock, heard=heard, env=env, cwd=work)
    if code:
        said = "\n".join([text for line in lines if (text := _said(line) or line)][-_TAIL:])
        raise RejectedError(
            f"image {job.image.name}: packer {verb} failed:\n{said}", hint=f"see {job.log}"
        )
    return lines


def _said(line: str) -> str:
    """Give what Packer says to a person in a line for programs; empty when nothing."""
    found = re.match(r"\d+,[^,]*,ui,(?:say|message|error),(.*)", line)
    if not found:
        return ""
    return found[1].replace("%!(PACKER_COMMA)", ",").partition("\\n")[0].strip()


def _artifact(job: Job, work: Path, lines: list[str]) -> Path:
    """Find the one qcow2 file among what the template says it made."""
    named = [
        work / found[1].replace("%!(PACKER_COMMA)", ",")
        for line in lines
        if (found := re.match(r"\d+,[^,]*,artifact,\d+,file,\d+,(.*)", line))
    ]
    inside = [path for path in named if path.resolve().is_relative_to(work.resolve())]
    disks = [path for path in inside if path.is_file() and disk_info(path)["format"] == "qcow2"]
    if len(disks) != 1:
        made = ", ".join(sorted(path.name for path in named)) or "nothing"
        raise RejectedError(
            f"image {job.image.name}: the template made {made}, not one qcow2 disk",
            hint='use the builder `qemu` with format = "qcow2" and a relative output_directory',
        )
    return disks[0]
