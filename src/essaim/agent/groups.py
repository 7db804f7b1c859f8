"""Control groups of leased accounts: what a lease uses of its machine leaves the agent alive.

A machine is lent whole, so a lease may use all of it but a reserve.  systemd puts sessions into
the account's slice; with groups of version 1 the shell enters the account's group; whatever has
got past (a job of cron) the helper's `reap` puts there each minute, as it does with version 2
where there is no systemd.  A machine without control groups says so with the label `limits=none`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time
from pathlib import Path
from typing import NamedTuple

from essaim.agent.belongings import processes
from essaim.agent.common import NOTICES, SERVICE, Trouble, tool, write_file

GROUPS = NOTICES / "groups"  #: one file for each account
TREE = Path("/sys/fs/cgroup")
FOLDER = "essaim-leases"
CONTROLLERS = ("cpu", "memory", "pids")
#: MiB that are never a lease's, or a twentieth of the memory if that is more.
RESERVE = 64
#: Processes of a lease; those of the agent are the last to go when memory is short.
LEASE_OOM, AGENT_OOM = 500, -900
_PERIOD = 100_000  #: microseconds over which processor time is counted
_REMOVED_WITHIN = 3.0


class Rented(NamedTuple):
    """What an account may use in all; 0 for no limit."""

    cores: int = 0
    memory_mib: int = 0
    processes: int = 0


def kind_of_groups() -> str:
    """Say how this machine limits leases: systemd, v2, v1 or none."""
    if Path("/run/systemd/system").is_dir():
        return "systemd"
    trees = _trees()
    return "none" if not trees else "v2" if trees == [TREE] else "v1"


def _trees() -> list[Path]:
    """List the hierarchies that groups are made in."""
    if _is_roots(TREE):
        return [TREE]
    return [tree for tree in (TREE / name for name in CONTROLLERS) if _is_roots(tree)]


def _is_roots(tree: Path) -> bool:
    """Say whether root can make groups there; others ask it too."""
    try:
        path = str(tree / "cgroup.procs")
        return os.stat(path).st_uid == 0 and not os.statvfs(path).f_flag & os.ST_RDONLY  # noqa: PTH116
    except OSError:
        return False


def machine_memory() -> int:
    """Give the memory of this machine, in MiB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, IndexError):
        # A container may see less there than its kernel has; the first line is MemTotal, in KiB.
        total = min(total, int(Path("/proc/meminfo").read_text().split()[1]) << 10)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return total >> 20


def limit_account(account: str, rented: Rented) -> None:
    """Hold an account to what it has rented, from now on and after a boot."""
    total = machine_memory()
    most = max(total - max(RESERVE, total // 20), total // 2)
    rented = rented._replace(memory_mib=min(rented.memory_mib or most, most))
    for folder in (NOTICES, GROUPS):
        folder.mkdir(mode=0o755, exist_ok=True)
    write_file(GROUPS / account, json.dumps(rented._asdict()) + "\n", 0o644)
    _make_groups(account, rented)


def _make_groups(account: str, rented: Rented) -> None:
    uid = pwd.getpwnam(account).pw_uid
    if kind_of_groups() == "systemd":
        with contextlib.suppress(Trouble):  # one without slices for users
            tool("systemctl", "set-property", "--runtime", f"user-{uid}.slice", *_slice(rented))
        return
    for tree in _trees():
        group = tree / FOLDER / account
        with contextlib.suppress(OSError):
            for folder in (group.parent, group):
                for name in CONTROLLERS:  # of version 2, which hands nothing down by itself
                    with contextlib.suppress(OSError):
                        _put(folder.parent / "cgroup.subtree_control", f"+{name}")
                folder.mkdir(mode=0o755, exist_ok=True)
            for name, value in _files(rented):
                with contextlib.suppress(OSError):
                    _put(group / name, value)
            # So that the account's shell can enter; whoever is in cannot leave for another.
            os.chown(str(group / "cgroup.procs"), uid, 0)


def _slice(rented: Rented) -> list[str]:
    words = [f"MemoryMax={rented.memory_mib}M", "MemorySwapMax=0", "CPUWeight=50"]
    words += [f"CPUQuota={rented.cores * 100}%"] if rented.cores else []
    return words + ([f"TasksMax={rented.processes}"] if rented.processes else [])


def _files(rented: Rented) -> list[tuple[str, str]]:
    """Give what is written where, of both versions; a group has only some of these files."""
    memory, quota = str(rented.memory_mib << 20), str(rented.cores * _PERIOD)
    files = [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
    files += [("memory.max", memory), ("memory.swap.max", "0")]
    files += [("cpu.shares", "512"), ("cpu.weight", "50")]
    if rented.cores:
        files += [("cpu.cfs_quota_us", quota), ("cpu.max", f"{quota} {_PERIOD}")]
    return files + ([("pids.max", str(rented.processes))] if rented.processes else [])


def _put(path: Path, value: str) -> None:
    # Not created where it is missing: that would be a controller the group does not have.
    fd = os.open(str(path), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def keep_limits(entries: list[pwd.struct_passwd]) -> None:
    """Make groups that a boot has taken, put into them what runs outside, spare the agent."""
    for entry in entries:
        with contextlib.suppress(OSError, ValueError, TypeError):
            rented = Rented(**json.loads((GROUPS / entry.pw_name).read_text()))
            if not _has_groups(entry):
                _make_groups(entry.pw_name, rented)
            _gather(entry)
    with contextlib.suppress(KeyError):
        service = pwd.getpwnam(SERVICE).pw_uid
        for pid, _name, _uid in processes(lambda uid: uid == service):
            prefer(pid, AGENT_OOM)


def _has_groups(entry: pwd.struct_passwd) -> bool:
    if kind_of_groups() == "systemd":
        return Path(f"/run/systemd/system.control/user-{entry.pw_uid}.slice.d").is_dir()
    return all((tree / FOLDER / entry.pw_name).is_dir() for tree in _trees())


def _gather(entry: pwd.struct_passwd) -> None:
    if kind_of_groups() == "systemd":
        return  # it knows whose session a process is of
    for pid, _name, _uid in processes(lambda uid: uid == entry.pw_uid):
        for tree in _trees():
            with contextlib.suppress(OSError):
                where = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
                controller = "" if tree == TREE else tree.name
                own = [line for line in where if controller in line.split(":")[1].split(",")]
                if not any(f"/{FOLDER}/{entry.pw_name}" in line for line in own):
                    _move(pid, entry.pw_uid, tree / FOLDER / entry.pw_name / "cgroup.procs")
                    prefer(pid, LEASE_OOM)


def _move(pid: int, uid: int, file: Path) -> None:
    """Put an account's process into its group."""
    try:
        _put(file, str(pid))
    except PermissionError:
        # Groups of version 1 let root of a user namespace move nobody else; the account may itself.
        os.seteuid(uid)
        try:
            _put(file, str(pid))
        finally:
            os.seteuid(0)


def prefer(pid: int, score: int) -> None:
    """Say how soon the kernel ends a process when memory is short; nothing where we may not."""
    with contextlib.suppress(OSError):
        _put(Path(f"/proc/{pid}/oom_score_adj"), str(score))


def remove_groups(account: str) -> None:
    """Remove an account's groups, which are empty now, and what systemd was told about it."""
    until = time.monotonic() + _REMOVED_WITHIN
    for tree in _trees():
        group = tree / FOLDER / account
        while group.is_dir() and time.monotonic() < until:
            with contextlib.suppress(OSError):  # the last process is still on its way out
                group.rmdir()
                break
            time.sleep(0.02)
        with contextlib.suppress(OSError):  # others may be there
            group.parent.rmdir()
