"""The first root of a disk that boots: busybox, the modules to reach the real one, and a script.

A distribution's own initrd is ten times as large and looks for everything that might be there;
under emulation that costs longer than all the rest of the boot.
"""

from __future__ import annotations

import gzip
import lzma
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.images.disks import EPOCH
from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: To reach the disk whichever way a hypervisor offers it, and its file system.
DISK_MODULES = ("virtio_pci", "virtio_blk", "ext4")
_DEPENDS = re.compile(rb"(?:^|\0)depends=([^\0]*)\0")
_FOLDER, _FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755

SCRIPT = """\
#!/bin/busybox sh
# Load what the disk needs, mount its partition, go on there.  What is written is on the disk two
# seconds later, for machines are also switched off without a word.
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules); do
  /bin/busybox insmod "/$module"
done
tries=0
until /bin/busybox mount -t ext4 -o noatime,commit=2 /dev/vda1 /root 2>/dev/null; do
  tries=$((tries + 1))
  [ "$tries" -le 300 ] || { echo "there is no /dev/vda1 to boot from"; exec /bin/busybox sh; }
  /bin/busybox usleep 100000
done
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in a root file system, and its modules by name."""

    version: str
    modules: Mapping[str, Path] = field(repr=False)

    @classmethod
    def of(cls, root: Path) -> Kernel:
        """Find the kernel that is installed or unpacked there; the newest when there are more."""
        found = sorted((root / "boot").glob("vmlinuz-*"), key=lambda path: _parts(path.name))
        if not found:
            raise RejectedError("the image has no kernel", hint="add linux-image-cloud-amd64")
        version = found[-1].name.removeprefix("vmlinuz-")
        files = (root / "lib/modules" / version).rglob("*.ko*")
        return cls(version, {_name(path.name.partition(".")[0]): path for path in files})

    def closure(self, wanted: Iterable[str]) -> list[Path]:
        """List the modules in the order in which they can be loaded.

        What is built into the kernel is no module and is left out.
        """
        order: dict[str, Path] = {}

        def add(name: str) -> None:
            path = self.modules.get(_name(name))
            if path is None or _name(name) in order:
                return
            for needed in _depends(path):
                add(needed)
            order[_name(name)] = path

        for name in wanted:
            add(name)
        return list(order.values())


def _name(text: str) -> str:
    return text.replace("-", "_")


def _parts(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def module_name(path: Path) -> str:
    """Tell what a module's file is called when it is not compressed."""
    return path.name.removesuffix(".xz")


def read_module(path: Path) -> bytes:
    """Read a module as busybox loads it; newer releases of Debian compress them."""
    body = path.read_bytes()
    return lzma.decompress(body) if path.suffix == ".xz" else body


def _depends(module: Path) -> list[str]:
    found = _DEPENDS.search(read_module(module))
    return [name for name in found[1].decode().split(",") if name] if found else []


def initrd(kernel: Kernel, busybox: Path, modules: Iterable[str] = DISK_MODULES) -> bytes:
    """Make the archive GRUB hands to the kernel; the same files give the same bytes."""
    files = kernel.closure(modules)
    entries: dict[str, tuple[int, bytes]] = {
        **dict.fromkeys(("bin", "dev", "root"), (_FOLDER, b"")),
        "bin/busybox": (_FILE, busybox.read_bytes()),
        "init": (_FILE, SCRIPT.encode()),
        "modules": (_FILE, "".join(f"{module_name(path)}\n" for path in files).encode()),
        **{module_name(path): (_FILE, read_module(path)) for path in files},
    }
    return gzip.compress(b"".join(_archive(entries)), compresslevel=9, mtime=0)


def _archive(entries: Mapping[str, tuple[int, bytes]]) -> Iterator[bytes]:
    """Write the `newc` form of cpio, in order of names and with one time for all."""
    for number, (name, (mode, body)) in enumerate(sorted(entries.items()), start=1):
        yield _entry(number, name, mode, body)
    yield _entry(0, "TRAILER!!!", 0, b"")


def _entry(number: int, name: str, mode: int, body: bytes) -> bytes:
    title = name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    numbers = (number, mode, 0, 0, links, EPOCH, len(body), 0, 0, 0, 0, len(title), 0)
    head = b"070701" + b"".join(b"%08X" % one for one in numbers)
    return _padded(head + title) + _padded(body)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 4)
