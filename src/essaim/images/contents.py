"""One digest for a whole root file system: whatever a machine could notice is in it.

Standard library only: for a plain user it is also run as a program, in the namespace in which all
of an image's files can be read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

#: What a build leaves behind of the day it was made, and what a machine gets anew at its start.
LEFT_OUT = frozenset({b"dev", b"proc", b"run", b"sys", b"tmp", b"var/cache", b"var/log"})
#: Their third column is the day on which an account was made: that of the build.
_DATED = frozenset({b"etc/shadow", b"etc/shadow-"})


def tree_digest(root: Path) -> str:
    """Digest every name, kind, mode, owner, link and content below a folder, but no times."""
    total = hashlib.sha256()
    top = os.fsencode(root)
    for path in _walk(top, b""):
        full = os.path.join(top, path)  # noqa: PTH118 - names are bytes here
        about = os.lstat(full)
        mode = about.st_mode
        head = f"{stat.filemode(mode)} {about.st_uid} {about.st_gid} ".encode() + path + b"\0"
        total.update(head + (_dateless(full) if path in _DATED else _content(full, about)))
    return total.hexdigest()


def _walk(top: bytes, below: bytes) -> list[bytes]:
    found: list[bytes] = []
    with os.scandir(os.path.join(top, below)) as entries:  # noqa: PTH118 - names are bytes here
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = below + b"/" + entry.name if below else entry.name
            found.append(path)
            if entry.is_dir(follow_symlinks=False) and path not in LEFT_OUT:
                found += _walk(top, path)
    return found


def _content(path: bytes, about: os.stat_result) -> bytes:
    mode = about.st_mode
    if stat.S_ISLNK(mode):
        return os.readlink(path)  # noqa: PTH115 - names are bytes here
    if stat.S_ISREG(mode):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - names are bytes here
            return hashlib.file_digest(file, "sha256").digest()
    return str(about.st_rdev).encode() if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else b""


def _dateless(path: bytes) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - names are bytes here
        rows = [line.split(b":") for line in file]
    return b"".join(b":".join((*row[:2], *row[3:])) for row in rows)


def rootfs_digest(root: Path) -> str:
    """Digest an image's root file system, whoever its files belong to."""
    from essaim.images.inside import is_rootless  # noqa: PLC0415 - see above

    if not is_rootless():
        return tree_digest(root)
    return _inside(sys.executable, "-I", "-S", __file__, str(root)).strip()


def altered_files(root: Path) -> list[str] | None:
    """List the files of a Debian root file system that are not as their packages have them.

    None on a computer without the program that tells.
    """
    from essaim.images.inside import environment  # noqa: PLC0415 - see above
    from essaim.plan.lock_node import altered_paths  # noqa: PLC0415 - see above

    if shutil.which("dpkg", path=environment()["PATH"]) is None:
        return None
    said = _inside("dpkg", f"--root={root}", "--verify")
    return sorted(altered_paths(said.splitlines()))


def _inside(*command: str) -> str:
    """Give what a program prints that may read all of an image."""
    from essaim.images.inside import run_over_all  # noqa: PLC0415 - see above
    from essaim.model.errors import SetupError  # noqa: PLC0415 - see above

    done = run_over_all(*command)
    if done.returncode:
        raise SetupError(f"{command[0]}: {done.stderr.strip()}", hint="essaim doctor")
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(tree_digest(Path(sys.argv[1])) + "\n")
