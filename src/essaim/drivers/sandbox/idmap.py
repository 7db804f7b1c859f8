"""A user namespace for each of root's machines: its root is nobody on the computer.

Files keep the owners they have inside: idmapped mounts show them shifted (Linux 5.19 for overlays,
and a file system that can).  Run as a program, `idmap.py DIRECTORY` says what is in the way there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":  # run by a Python that knows of no package
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from essaim.drivers.sandbox import linux

IDS = 1 << 16  #: a machine has users and groups below that
#: Ranges of ids by their upper half: those meant for containers, above what /etc/subuid hands out.
_FIRST_RANGE, _RANGES = 0x4000, 0x2FFE
NO_NAMESPACE = "root of a machine is root of this computer with fewer capabilities"
#: Hidden below it, in the namespace of a machine that starts, is what its disk is laid out of.
SCRATCH = "/tmp"  # noqa: S108 - nothing is written: a file system of its own is mounted there


def first_id(machine: Path) -> int:
    """Choose what a machine's user 0 is on this computer; the same each time."""
    digest = hashlib.sha256(os.fsencode(machine)).digest()
    return (_FIRST_RANGE + int.from_bytes(digest[:4], "big") % _RANGES) << 16


def write_maps(pid: int, first: int) -> None:
    """Map the ids of a process's new user namespace to those from `first` on."""
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {IDS}\n")


def become_root() -> None:
    """Be user 0 of the user namespace this process is in."""
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def lay_out(image: int, disk: int) -> None:
    """Mount the overlay of two trees of `linux.clone_mount` at `root` in the working directory."""
    linux.mount("tmpfs", SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0700")
    os.chdir(SCRATCH)
    for name, tree in (("image", image), ("disk", disk)):
        Path(name).mkdir()
        linux.attach(tree, name)
    Path("root").mkdir()
    options = "lowerdir=image,upperdir=disk/upper,workdir=disk/work,index=off,userxattr"
    linux.mount("overlay", "root", "overlay", 0, options)


class Users:
    """A user namespace nobody is in, to try mounts with."""

    def __init__(self) -> None:
        """Make it; OSError where there are none."""
        wait, go = os.pipe()
        pid = linux.clone(linux.CLONE_NEWUSER)
        if not pid:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
        os.close(wait)
        try:
            write_maps(pid, _FIRST_RANGE << 16)
            self.namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        finally:
            os.close(go)
            os.waitpid(pid, 0)
        self._seen: dict[str, bool] = {}

    def can_show(self, path: str) -> bool:
        """Whether what is below `path` can be shown with its owners shifted."""
        if path not in self._seen:
            try:
                os.close(linux.clone_mount(path, users=self.namespace))
            except OSError:
                self._seen[path] = False
            else:
                self._seen[path] = True
        return self._seen[path]

    def rehearse(self, place: Path) -> None:
        """Do what a machine will do with files at `place`; OSError when it cannot."""
        probe = place / ".probe"
        shutil.rmtree(probe, ignore_errors=True)
        try:
            for name in ("lower", "upper", "work"):
                (probe / name).mkdir(parents=True)
            (probe / "lower" / "thing").touch()
            self._rehearse(probe)
        finally:
            shutil.rmtree(probe, ignore_errors=True)

    def _rehearse(self, probe: Path) -> None:
        trees = [
            linux.clone_mount(str(path), users=self.namespace) for path in (probe / "lower", probe)
        ]
        pid = os.fork()
        if not pid:
            code = 1
            try:
                self._play_machine(*trees)
                code = 0
            except OSError as error:
                code = error.errno or 1
            finally:
                os._exit(code)
        for tree in trees:
            os.close(tree)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise OSError(code, os.strerror(code) if code > 0 else f"killed by {-code}")

    def _play_machine(self, image: int, disk: int) -> None:
        linux.setns(self.namespace, linux.CLONE_NEWUSER)
        become_root()
        linux.unshare(linux.CLONE_NEWNS)
        lay_out(image, disk)
        thing = Path("root/thing")
        thing.unlink()
        thing.mkdir()


class Isolation:
    """What keeps the machines of one stack from the computer; nothing more for a plain user's."""

    def __init__(self, users: Users | None = None, obstacle: str = "") -> None:
        self._users = users
        self.obstacle = obstacle  #: why root's machines have no user namespaces here

    @classmethod
    def find(cls, place: Path) -> Isolation:
        """See what this computer offers to machines kept at `place`."""
        try:
            users = Users()
        except OSError as error:
            return cls(None, f"the kernel refuses a user namespace: {error.strerror}")
        try:
            users.rehearse(place)
        except OSError as error:
            return cls(None, f"{place}: no idmapped mounts on this file system: {error.strerror}")
        return cls(users)

    def note(self, rootfs: str) -> str:
        """Tell people what a machine of that image lacks; nothing when all is well."""
        obstacle = self.obstacle
        if self._users and not self._users.can_show(rootfs):
            obstacle = f"{rootfs}: no idmapped mounts on this file system"
        return f"{NO_NAMESPACE}: {obstacle}" if obstacle else ""

    def first_id(self, machine: Path, rootfs: str) -> int:
        """Say what the machine's root is on this computer; 0 when it has no namespace."""
        return first_id(machine) if self._users and not self.note(rootfs) else 0


def in_user_namespace() -> bool:
    """Whether this process is in a user namespace already, as root of a machine is."""
    with suppress(OSError, ValueError):
        inside, outside, count = Path("/proc/self/uid_map").read_text().split()
        return (int(inside), int(outside), int(count)) != (0, 0, 0xFFFFFFFF)
    return True


if __name__ == "__main__":
    sys.stdout.write(Isolation.find(Path(sys.argv[1])).obstacle)
