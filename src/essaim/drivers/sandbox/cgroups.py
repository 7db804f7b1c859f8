"""A control group per machine, as root: its memory limit, and a place for schedulers to put jobs.

Hosts differ: version 1 has one tree per controller, version 2 one for all, and some allow nothing.
Without any a machine works all the same, unlimited.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BASE = Path("/sys/fs/cgroup")
#: What is said when another stack has ended meanwhile and removes what is empty; and how often a
#: group is made in spite of that.
_GOING, _TRIES = (errno.ENOENT, errno.ENODEV), 100
_KNOWN = ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")


class Cgroups:
    """The control groups of one stack."""

    def __init__(self, trees: list[Path], stack: str, note: str = "") -> None:
        self.stacks = [tree / "essaim" / stack for tree in trees]  #: one in each tree
        self.note = note  #: for people: why there are no limits

    @classmethod
    def find(cls, directory: Path, *, rootless: bool) -> Cgroups:
        """See what this computer offers.  Stacks of one name in two places stay apart."""
        if rootless:
            return cls([], "", "none: they need root")
        place = hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]
        trees = list(_trees())
        usable = [tree for tree in trees if os.access(tree / "cgroup.procs", os.W_OK)]
        note = "" if usable else "none: /sys/fs/cgroup is not writable"
        return cls(usable, f"{directory.name}-{place}", note)

    def make(self, name: str, memory: int) -> list[Path]:
        """Make the groups a machine's first process is to enter.  Safe to repeat."""
        groups = [group for stack in self.stacks if (group := _make(stack / name))]
        for group in groups:
            for limit in ("memory.limit_in_bytes", "memory.max"):
                if memory and (group / limit).exists():
                    with suppress(OSError):
                        (group / limit).write_text(str(memory << 20))
        return groups

    def remove(self, name: str) -> bool:
        """Remove a machine's groups; False while a process is still on its way out of one."""
        left = [stack for stack in self.stacks if not _remove(stack / name)]
        return not left

    def remove_all(self) -> bool:
        """Remove the groups of the whole stack."""
        left = [stack for stack in self.stacks if not _remove(stack)]
        for stack in self.stacks:
            with suppress(OSError):  # other stacks may be there
                stack.parent.rmdir()
        return not left


def _trees() -> Iterator[Path]:
    if (_BASE / "cgroup.controllers").exists():
        yield _BASE
        return
    for name in _KNOWN:
        # A controller mounted together with another is a link to their common directory.
        if (_BASE / name / "cgroup.procs").exists() and not (_BASE / name).is_symlink():
            yield _BASE / name
    for path in sorted(_BASE.glob("*,*")):
        if (path / "cgroup.procs").exists():
            yield path


def _make(group: Path) -> Path | None:
    for _ in range(_TRIES):
        try:
            for directory in (group.parent.parent, group.parent, group):
                directory.mkdir(exist_ok=True)
                _inherit(directory)  # also where somebody else has just made it, and no more
        except OSError as error:
            if error.errno not in _GOING:
                return None
        else:
            return group
    return None


def _inherit(group: Path) -> None:
    """Hand down what a new group does not get by itself."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        with suppress(OSError):
            if not (group / name).read_text().strip():
                (group / name).write_text((group.parent / name).read_text())
    for name in ("cpu", "memory", "pids", "io", "cpuset"):
        with suppress(OSError):
            (group.parent / "cgroup.subtree_control").write_text(f"+{name}")


def _remove(group: Path) -> bool:
    for directory, _, _ in os.walk(group, topdown=False):
        with suppress(FileNotFoundError):
            try:
                Path(directory).rmdir()
            except OSError:
                return False
    return True
