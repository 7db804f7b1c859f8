"""Run programs as root: really, or as the root of a user namespace when the user is a plain one.

Files made inside belong to the user's subordinate ids; only programs run inside can remove them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"


def is_rootless() -> bool:
    """Whether a user namespace is needed."""
    return os.geteuid() != 0


def environment() -> dict[str, str]:
    """Make a small environment, the same for everybody; proxies are kept."""
    kept = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy")}
    path = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM}"
    return {**kept, "PATH": path, "HOME": "/root", "LC_ALL": "C.UTF-8"}


def as_root(*command: str) -> list[str]:
    """Make the command line that runs `command` as root in namespaces of its own.

    It ends with this process, and all it started ends with it.
    """
    user = ("--user", "--map-auto", "--map-root-user") if is_rootless() else ()
    return [
        "setpriv", "--pdeathsig", "KILL",
        "unshare", *user, "--mount", "--propagation", "private",
        "--pid", "--fork", "--kill-child", "--mount-proc",
        *command,
    ]  # fmt: skip


def check_tools(**more: str) -> None:
    """Raise SetupError when a program that builds need is missing; `more` is tool=package."""
    needed = {"mmdebstrap": "mmdebstrap", "unshare": "util-linux", "setpriv": "util-linux", **more}
    if is_rootless():
        needed["newuidmap"] = "uidmap"
    require(needed)


def require(needed: Mapping[str, str]) -> None:
    """Raise SetupError that says how to get the programs that are missing; tool -> package."""
    path = environment()["PATH"]
    missing = {package for tool, package in needed.items() if not shutil.which(tool, path=path)}
    if missing:
        packages = " ".join(sorted(missing))
        raise SetupError(
            f"images cannot be built here: {packages} not installed",
            hint=f"sudo apt-get install {packages}",
        )


def remove_tree(path: Path) -> None:
    """Delete a tree whoever its files belong to.  Nothing if it is gone."""
    if not path.exists():
        return
    done = run_over_all("rm", "-rf", "--", str(path))
    if path.exists():
        raise SetupError(f"{path} cannot be removed: {done.stderr.strip()}")


def run_over_all(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program over an image's files, whoever they belong to."""
    return subprocess.run(
        as_root(*command) if is_rootless() else command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
