"""The builder `debian` for sandboxes: a root file system in a folder."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from essaim.images import debian
from essaim.images.inside import check_tools, environment
from essaim.images.programs import version
from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.images.builders import Job
    from essaim.model.stacks import Image

EDITION = ""


def check(image: Image) -> None:
    """See that the settings make sense and that mmdebstrap can run."""
    check_tools()
    debian.recipe(image.name, image.settings)


def build(job: Job) -> dict[str, Any]:
    """Make the folder; the manifest lists every package with its version."""
    wanted = debian.recipe(job.image.name, job.image.settings)
    debian.build(
        job.image.name,
        wanted,
        target=job.result,
        archives=job.archives,
        log=job.log,
        lock=job.lock,
        say=job.say,
    )
    check_server(job.image, job.result)
    return facts(wanted, job.result)


def check_server(image: Image, root: Path) -> None:
    """Raise RejectedError when nobody could log in."""
    if not (root / "usr/sbin/sshd").exists():
        raise RejectedError(
            f"image {image.name} has no sshd", hint="add openssh-server to its packages"
        )


def facts(wanted: debian.Recipe, root: Path) -> dict[str, Any]:
    """Say what a root file system was made from and with."""
    return {
        "sources": list(wanted.sources),
        "tools": {tool: version(tool) for tool in ("mmdebstrap", "apt-get", "dpkg")},
        "packages": _packages(root),
    }


def _packages(root: Path) -> dict[str, str]:
    text = subprocess.run(
        [
            "dpkg-query",
            f"--admindir={root}/var/lib/dpkg",
            "--show",
            "--showformat=${Package} ${Version}\n",
        ],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    ).stdout
    return dict(line.split(" ", 1) for line in text.splitlines())
