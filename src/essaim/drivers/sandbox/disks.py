"""Where a machine's own files go: on disk, or in memory if the file system carries no overlay."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.drivers.sandbox import linux

if TYPE_CHECKING:
    from essaim.drivers.sandbox.files import Layout

_CONSOLE_LIMIT = 1 << 20


def prepare(layout: Layout, *, rootless: bool) -> bool:
    """Make the stack's directories; True when its machines' files will be in memory."""
    for directory, mode in (
        (layout.machines, 0o700),
        (layout.hosts, 0o755),  # seen by everybody inside the machines
        (layout.memory, 0o700),
        (layout.shared, 0o700),
    ):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)
    if _carries_overlay(layout.root / ".probe", rootless=rootless):
        return False
    linux.mount("tmpfs", str(layout.memory), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0700")
    return True


def _carries_overlay(probe: Path, *, rootless: bool) -> bool:
    """Do what a machine will do: hide a file of the image and put a directory in its place."""
    here = Path.cwd()
    try:
        shutil.rmtree(probe, ignore_errors=True)
        for name in ("lower", "upper", "work", "root"):
            (probe / name).mkdir(parents=True)
        (probe / "lower" / "thing").touch()
        os.chdir(probe)
    except OSError:
        return True  # the disk is full, which says nothing about overlays
    options = "lowerdir=lower,upperdir=upper,workdir=work" + (",userxattr" if rootless else "")
    try:
        linux.mount("overlay", "root", "overlay", 0, options)
        return _hides(Path("root/thing"))
    except OSError:
        return False
    finally:
        os.chdir(here)
        shutil.rmtree(probe, ignore_errors=True)


def _hides(thing: Path) -> bool:
    try:
        thing.unlink()
        thing.mkdir()
    except OSError:
        return False
    finally:
        linux.umount("root")
    return True


def prepare_layers(disk: Path, *, user_xattrs: bool) -> None:
    """Make the directories of a machine's own files, with the overlay's marks where it looks.

    A machine in a user namespace cannot read the marks that the computer's root writes.
    """
    note, wanted = disk / "marks", "user" if user_xattrs else "trusted"
    fresh = not (disk / "upper").exists()
    disk.mkdir(mode=0o700, exist_ok=True)
    for name in ("upper", "work", "root"):
        (disk / name).mkdir(mode=0o755, exist_ok=True)
    there = note.read_text() if note.exists() else "trusted"
    if there != wanted:
        if not fresh:
            _copy_marks(disk / "upper", f"{there}.overlay.opaque", f"{wanted}.overlay.opaque")
        note.write_text(wanted)


def _copy_marks(upper: Path, old: str, new: str) -> None:
    """Mark directories that hide those of the image, once after an upgrade."""
    for directory, _, _ in os.walk(upper):
        with suppress(OSError):  # most have none
            os.setxattr(directory, new, os.getxattr(directory, old))


def forbid_devices(layout: Layout) -> None:
    """Remove devices from folders that machines of an earlier version shared, once."""
    if layout.devices.exists():
        return
    for directory, _, files in os.walk(layout.shared):
        for name in files:
            path = Path(directory, name)
            mode = path.lstat().st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                path.unlink()
    with suppress(OSError):  # on a full disk it is done again
        layout.devices.write_text("none\n")


def open_console(path: Path) -> int:
    """Open the file a machine's first process writes to; made anew when it has become long."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > _CONSOLE_LIMIT:
            path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def share(folder: Path, image: Path) -> None:
    """Make a folder for all machines of a stack, as their image has it.  Nothing if it is there."""
    if folder.exists():
        return
    fresh = folder.with_name(f".{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    if image.is_dir() and not image.is_symlink():
        shutil.copytree(image, fresh, symlinks=True, copy_function=_copy)
        for directory, _, _ in os.walk(fresh):
            origin = (image / Path(directory).relative_to(fresh)).stat()
            os.chown(directory, origin.st_uid, origin.st_gid)
    else:
        fresh.mkdir()
        fresh.chmod(0o755)
    fresh.rename(folder)


def _copy(source: str, target: str) -> None:
    shutil.copy2(source, target, follow_symlinks=False)
    origin = os.lstat(source)
    os.chown(target, origin.st_uid, origin.st_gid, follow_symlinks=False)


def remove(paths: list[Path]) -> int:
    """Delete trees in a child process, which is returned: a disk may be large, the keeper waits."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
        status = int(any(path.exists() for path in paths))
    finally:
        os._exit(status)
