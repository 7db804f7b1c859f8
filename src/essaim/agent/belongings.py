"""Find and remove all that ephemeral accounts own on a machine: processes, jobs, files, IPC.

Accounts have uids of a range of their own, so what a vanished account left is found as well.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.agent.common import PROGRAM_WITHIN, SAFE_PATH, Trouble, remove_file, tool
from essaim.agent.mounts import mount_table

if TYPE_CHECKING:
    from collections.abc import Callable

#: systemd gives out uids of its own from 61184 on; nobody uses these.
FIRST_UID, LAST_UID = 61000, 61183
#: Seconds processes have to end when asked, and until those that do not are given up.
ASKED, GIVEN_UP = 2.0, 20.0
MOST_FOUND = 200

_SYSV = {"shm": ("shmid", "-m"), "sem": ("semid", "-s"), "msg": ("msqid", "-q")}
_JOBS = ("/var/spool/cron/atjobs", "/var/spool/cron/atspool", "/var/spool/at")
#: File systems without files of users of this machine, or shared with other machines.
_ELSEWHERE = (
    "proc sysfs cgroup cgroup2 devpts securityfs debugfs tracefs bpf pstore configfs fusectl "
    "autofs binfmt_misc rpc_pipefs nsfs selinuxfs efivarfs squashfs iso9660 nfs nfs4 cifs smb3 9p "
    "fuse ceph glusterfs lustre afs"
)
#: The kernel gives each such file system a folder of whom it was mounted for, in any namespace.
_ABORT = (
    "mount -n -t fusectl none /mnt 2>/dev/null || exit 0; "
    'exec find /mnt -mindepth 2 -name abort "$@" -exec '
    "sh -c 'for file; do echo 1 >\"$file\"; done' sh {} +"
)


class Belongings:
    """All that is owned by uids of the range, except by the accounts that are spared."""

    def __init__(self, spared: set[int]) -> None:
        self._spared = sorted(uid for uid in spared if FIRST_UID <= uid <= LAST_UID)

    def has(self, uid: int) -> bool:
        """Say whether things of this owner are meant."""
        return FIRST_UID <= uid <= LAST_UID and uid not in self._spared

    def spares(self, uid: int) -> bool:
        """Say whether this is the uid of an account that stays."""
        return uid in self._spared

    def abort_fuse(self) -> None:
        """End file systems that are processes, so that nothing waits for their answers."""
        if Path("/sys/fs/fuse/connections").is_dir():
            _names(["unshare", "-m", "sh", "-c", _ABORT, "sh", *self._owned()])

    def end_processes(self) -> bool:
        """Ask them to end, then kill until there are none; a fork loop is killed at once.

        False when some were still there after a while.
        """
        until = time.monotonic() + ASKED
        for pid, _name, _uid in processes(self.has):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while processes(self.has) and time.monotonic() < until:
            time.sleep(0.02)
        until = time.monotonic() + GIVEN_UP
        while (left := {uid for _, _, uid in processes(self.has)}) and time.monotonic() < until:
            for uid in left:
                _kill_all(uid)
            time.sleep(0.02)
        return not left

    def remove_jobs(self, account: str) -> None:
        """Remove what cron and at would start later."""
        for folder in ("crontabs", "tabs", ".") if account else ():
            remove_file(Path("/var/spool/cron", folder, account))
        for place in _JOBS:
            with contextlib.suppress(OSError):
                for entry in os.scandir(place):
                    if self.has(entry.stat(follow_symlinks=False).st_uid):
                        remove_file(Path(entry.path))

    def remove_ipc(self) -> None:
        """Remove System V objects and message queues; POSIX shared memory is files."""
        for kind, number in self._sysv():
            tool("ipcrm", _SYSV[kind][1], str(number), allow=(0, 1))
        _queues([*self._owned(), "-delete"])

    def remove_files(self) -> None:
        """Remove every file; of folders also what others have put there."""
        for mount in searched_mounts():
            _find([mount, "-xdev", "-depth", *self._owned(), "-delete"])
            rest = ["rm", "-rf", "--one-file-system", "--", "{}", "+"]
            _find([mount, "-xdev", "-type", "d", *self._owned(), "-prune", "-execdir", *rest])

    def left(self) -> list[str]:
        """Name everything there is."""
        found = [f"process {pid} {name}" for pid, name, _ in processes(self.has)]
        found += [f"{kind} {number}" for kind, number in self._sysv()]
        names, _ = _queues([*self._owned(), "-printf", "%f\\0"])
        found += [f"queue {legible(name)}" for name in names]
        for mount in searched_mounts():
            names, errors = _find([mount, "-xdev", *self._owned(), "-print0"])
            found += [f"file {legible(name)}" for name in names]
            found += [f"not searched: {legible(error)}" for error in errors]
        return found[:MOST_FOUND]

    def _owned(self) -> list[str]:
        """Give the words that make `find` select what is meant."""
        words = ["("]
        for test in ("-uid", "-gid"):
            words += ["(", test, f"+{FIRST_UID - 1}", test, f"-{LAST_UID + 1}"]
            for uid in self._spared:
                words += ["!", test, str(uid)]
            words += [")", "-o"]
        return [*words[:-1], ")"]

    def _sysv(self) -> list[tuple[str, int]]:
        found = []
        for kind, (column, _) in _SYSV.items():
            try:
                lines = Path("/proc/sysvipc", kind).read_text().splitlines()
            except OSError:
                continue  # a kernel without them
            titles = lines[0].split()
            for line in lines[1:]:
                row = [int(word) for word in line.split()]
                if any(self.has(row[titles.index(title)]) for title in ("uid", "cuid")):
                    found.append((kind, row[titles.index(column)]))
        return found


def taken_uids() -> set[int]:
    """List the uids and gids that have a name."""
    return {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}


def processes(has: Callable[[int], bool]) -> list[tuple[int, str, int]]:
    """List live processes as (pid, name, uid) whose real or saved uid satisfies `has`."""
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            text = (place / "status").read_text(errors="replace")
        except OSError:
            continue  # it has just ended
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        real, _, saved, _ = (int(word) for word in fields["Uid"].split())
        # A zombie holds nothing: its parent has not looked yet.
        if fields["State"][0] not in "ZX" and (has(real) or has(saved)):
            found.append((int(place.name), legible(fields["Name"]), real if has(real) else saved))
    return found


def legible(name: str) -> str:
    """Give a name on one line, whatever it is made of."""
    return name.encode("unicode_escape", "surrogatepass").decode("ascii")


def _kill_all(uid: int) -> None:
    """Kill every process of a uid in one call, which no fork can outrun."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)


def searched_mounts() -> list[str]:
    """List where local file systems that can be written are mounted, each tree once."""
    seen, found = set(), []
    for mount in mount_table():
        elsewhere = mount.kind in _ELSEWHERE.split() or mount.kind.startswith("fuse.")
        if elsewhere or mount.options.split(",")[0] == "ro":
            continue
        one = (mount.device, mount.root)
        if one not in seen and os.path.isdir(mount.path):  # noqa: PTH112 - may be any bytes
            seen.add(one)
            found.append(mount.path)
    return found


def _find(words: list[str]) -> tuple[list[str], list[str]]:
    """Run `find`; gives the names it printed and what it complained about."""
    return _names(["find", "-P", *words])


def _queues(words: list[str]) -> tuple[list[str], list[str]]:
    """Run `find` over the POSIX message queues, which exist whether they are mounted or not."""
    script = 'mount -n -t mqueue none /mnt 2>/dev/null || exit 0; exec find /mnt -mindepth 1 "$@"'
    return _names(["unshare", "-m", "sh", "-c", script, "sh", *words])


def _names(words: list[str]) -> tuple[list[str], list[str]]:
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": SAFE_PATH, "LC_ALL": "C"},
            cwd="/",
            check=False,
            timeout=PROGRAM_WITHIN,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Trouble(f"this machine could not be searched: {exc}", again=True) from exc
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    gone = (b"No such file or directory",)
    errors = [os.fsdecode(line) for line in done.stderr.splitlines() if not line.endswith(gone)]
    return names, errors
