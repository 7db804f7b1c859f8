"""Control groups: what a machine's cores and memory are enforced by.

Where a machine is limited it has two groups, one in the other: the outer one holds its limits, the
inner one, which it sees as its root, is a place for its schedulers to put jobs.  So nothing in a
machine changes its limits by accident.

Computers differ: version 1 has one tree per controller, version 2 one for all, and some allow
nothing.  Without any a machine works all the same; `note` says what is not enforced.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BASE = Path("/sys/fs/cgroup")
#: What is said when another stack has ended meanwhile and removes what is empty; and how often a
#: group is made in spite of that.
_GOING, _TRIES = (errno.ENOENT, errno.ENODEV), 100
_KNOWN = ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids")
_INNER = "machine"
_DELEGATED = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks")
_PERIOD = 100_000  #: microseconds over which processor time is counted
NOT_DELEGATED = (
    "memory is not enforced and cores can be exceeded on purpose: "
    "this user has no delegated control group (version 2)"
)
NO_CONTROLLER = "memory is not enforced: these control groups have no memory controller"
NOT_WRITABLE = "cores and memory are not enforced: /sys/fs/cgroup is not writable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a machine may use; 0 or nothing for no limit."""

    memory: int = 0  #: MiB
    cores: int = 0
    cpus: str = ""  #: the processors it runs on, as the kernel lists them: `0-1,4`


class Cgroups:
    """The control groups of one stack."""

    def __init__(self, trees: list[Path], stack: str, note: str = "") -> None:
        self.stacks = [tree / "essaim" / stack for tree in trees]  #: one in each tree
        self.note = note  #: for people: what is not enforced, and why

    @classmethod
    def find(cls, directory: Path, *, rootless: bool) -> Cgroups:
        """See what this computer offers.  Stacks of one name in two places stay apart."""
        place = hashlib.sha256(os.fsencode(directory)).hexdigest()[:8]
        trees = list(_delegated() if rootless else _trees())
        usable = [tree for tree in trees if os.access(tree / "cgroup.procs", os.W_OK)]
        note = "" if usable else NOT_DELEGATED if rootless else NOT_WRITABLE
        return cls(usable, f"{directory.name}-{place}", note)

    def make(self, name: str, limits: Limits) -> list[Path]:
        """Make the groups a machine's first process is to enter.  Safe to repeat."""
        groups = [group for stack in self.stacks if (group := _make(stack / name, limits))]
        counted = [
            stack for stack in self.stacks for file, _ in _USAGE if (stack / name / file).exists()
        ]
        if limits.memory and self.stacks and not counted:
            self.note = NO_CONTROLLER
        return groups

    def used(self, name: str) -> tuple[int, int] | None:
        """Bytes of memory a machine uses, and how many of them are cached files."""
        for stack in self.stacks:
            for usage, cached in _USAGE:
                with suppress(OSError, ValueError, KeyError):
                    used = int((stack / name / usage).read_text())
                    stat = (stack / name / "memory.stat").read_text().splitlines()
                    return used, int(dict(line.split() for line in stat)[cached])
        return None

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


#: Where each version says how much is used, and what cached files are called in `memory.stat`.
_USAGE = (("memory.usage_in_bytes", "total_cache"), ("memory.current", "file"))


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


def _delegated(own: Path = Path("/proc/self/cgroup")) -> Iterator[Path]:
    """Find the group that a plain user was given to divide: the highest above us they may write."""
    found = None
    with suppress(OSError, StopIteration, ValueError):
        line = next(line for line in own.read_text().splitlines() if line.startswith("0::"))
        group = _BASE / line[3:].strip("/")
        while group != _BASE and os.access(group, os.W_OK):
            if {"cpu", "memory"} & set((group / "cgroup.controllers").read_text().split()):
                found = group
            group = group.parent
    if found:
        yield found


def _make(group: Path, limits: Limits) -> Path | None:
    for _ in range(_TRIES):
        try:
            for directory in (group.parent.parent, group.parent, group):
                directory.mkdir(exist_ok=True)
                _inherit(directory)  # also where somebody else has just made it, and no more
            return _make_inner(group, limits) if _limit(group, limits) else group
        except OSError as error:
            if error.errno not in _GOING:
                return None
    return None


def _make_inner(group: Path, limits: Limits) -> Path:
    inner = group / _INNER
    inner.mkdir(exist_ok=True)
    _inherit(inner)
    _limit(inner, limits)  # for programs that look there how much they may use
    return inner


def _limit(group: Path, limits: Limits) -> bool:
    """Set those limits that the group's controllers know; tell whether there was any."""
    memory, quota = str(limits.memory << 20), str(limits.cores * _PERIOD)
    wanted = [("cpuset.cpus", limits.cpus)]
    if limits.memory:
        # Swap on top of it would make a machine larger than it says.
        wanted += [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
        wanted += [("memory.max", memory), ("memory.swap.max", "0")]
    if limits.cores:
        wanted += [("cpu.cfs_quota_us", quota), ("cpu.max", f"{quota} {_PERIOD}")]
    known = [(group / name, value) for name, value in wanted if value and (group / name).exists()]
    for file, value in known:
        with suppress(OSError):
            file.write_text(value)
    return bool(known)


def _inherit(group: Path) -> None:
    """Hand down what a new group does not get by itself."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        with suppress(OSError):
            if not (group / name).read_text().strip():
                (group / name).write_text((group.parent / name).read_text())
    for name in ("cpu", "memory", "pids", "io", "cpuset"):
        with suppress(OSError):
            (group.parent / "cgroup.subtree_control").write_text(f"+{name}")


def hand_to(group: Path, user: int) -> None:
    """Let a machine whose root is `user` make groups in its own, but not change its limits."""
    for path in (group, *(group / name for name in _DELEGATED)):
        with suppress(OSError):
            os.chown(path, user, user)


def _remove(group: Path) -> bool:
    for directory, _, _ in os.walk(group, topdown=False):
        with suppress(FileNotFoundError):
            try:
                Path(directory).rmdir()
            except OSError:
                return False
    return True
