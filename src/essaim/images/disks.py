"""Make a bootable disk from a folder: one ext4 partition, GRUB before it, no loop device, no root.

A BIOS loads sector 0, GRUB's `boot.img`; that loads sector 1, where `core.img` begins; and both
expect each other exactly there as they come from their package, so nothing has to be installed.
`core.img` holds all the modules it needs and a script; the partition holds kernel and initrd.
"""

from __future__ import annotations

import hashlib
import re
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.images.inside import as_root
from essaim.images.programs import must
from essaim.model.errors import RejectedError, SetupError

if TYPE_CHECKING:
    from essaim.images.builders import Job

#: Programs a disk is made with, and the packages they come from.
TOOLS = {
    "mkfs.ext4": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "grub-mkimage": "grub-pc-bin",  # it brings grub-common
    "qemu-img": "qemu-utils",
}
GRUB = Path("/usr/lib/grub/i386-pc")
_GRUB_MODULES = (
    "biosdisk", "part_msdos", "ext2", "linux", "normal", "configfile", "serial", "terminal",
    "echo", "test", "minicmd",
)  # fmt: skip

#: For the kernel of an image whose settings say `mitigations: false`: faster, above all where the
#: processor is emulated, but its faults are open to programs and its addresses known.
UNPROTECTED = " mitigations=off nokaslr"
#: The console people see is the serial one; where there is none, GRUB says so and goes on.
_SERIAL = ("serial --speed=115200", "terminal_output serial")

SECTOR = 512
START = 2048  #: first sector of the partition: 1 MiB
_CODE = 440  #: bytes of boot.img before the disk's own signature and the table of partitions
_LINUX, _ACTIVE = 0x83, 0x80
_NO_CYLINDERS = b"\xfe\xff\xff"  #: an address beyond the old scheme: look at the sectors instead

#: What GRUB 2.06 reads, written down so that the settings of the computer do not matter.
_FEATURES = (
    "[defaults]\n"
    "base_features = none,sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n"
    "default_mntopts = acl,user_xattr\n"
    "enable_periodic_fsck = 0\n"
    "blocksize = 4096\n"
    "inode_size = 256\n"
    "inode_ratio = 16384\n"
    "[fs_types]\n"
    "ext4 = {\n"
    "features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize\n"
    "}\n"
)
#: The time of all that has no reason to have another: 2000-01-01.
EPOCH = 946_684_800
_STILL = {"E2FSPROGS_FAKE_TIME": str(EPOCH)}
_FIRST_FILE = 11  #: inodes before it belong to the file system itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the disk is to be like."""

    size: int  #: MiB of the whole disk
    commands: tuple[str, ...]  #: of GRUB, that boot it or hand over to a file in the partition
    compress: bool  #: half the bytes to send, a little slower to read
    journal: int = 64  #: MiB


def identity(job: Job, what: str) -> str:
    """Give a number for a part of an image: the same whenever the same image is built."""
    space = uuid.UUID(bytes=hashlib.sha256(job.image.digest.encode()).digest()[:16], version=4)
    return str(uuid.uuid5(space, what))


def check_grub() -> None:
    """Raise SetupError when GRUB's files for a BIOS are missing."""
    if not (GRUB / "boot.img").exists():
        raise SetupError(
            "disks cannot be made here: grub-pc-bin not installed",
            hint="sudo apt-get install grub-pc-bin",
        )


def make_disk(job: Job, root: Path, layout: Layout, *, still: bool) -> None:
    """Make `job.result` from the folder `root`, whose files belong to root (inside).

    With `still` every time in the file system is EPOCH, so that the same files give the same disk.
    """
    raw = job.home / "disk.raw"
    with raw.open("wb") as file:
        file.truncate(layout.size << 20)
        file.write(_boot_record(job, layout.size))
        file.seek(SECTOR)
        file.write(_core(job, layout.commands))
    job.say("writing the file system")
    _file_system(job, root, raw, layout)
    if still:
        _stand_still(job, root, raw)
    job.say("compressing the disk" if layout.compress else "writing the disk")
    how = ["-c"] if layout.compress else []
    must(
        job, "qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2", *how,
        "-o", "compat=1.1", str(raw), str(job.result),
    )  # fmt: skip
    raw.unlink()


def _boot_record(job: Job, size: int) -> bytes:
    code = (GRUB / "boot.img").read_bytes()[:_CODE]
    signature = uuid.UUID(identity(job, "disk")).bytes[:4]
    count = size * 2048 - START
    entry = struct.pack("<B3sB3sII", _ACTIVE, _NO_CYLINDERS, _LINUX, _NO_CYLINDERS, START, count)
    table = entry + bytes(48)
    return code + signature + bytes(2) + table + b"\x55\xaa"


def _core(job: Job, commands: tuple[str, ...]) -> bytes:
    script, core = job.home / "grub.cfg", job.home / "core.img"
    script.write_text("".join(f"{line}\n" for line in (*_SERIAL, *commands)), encoding="ascii")
    must(
        job, "grub-mkimage", "-O", "i386-pc", "-d", str(GRUB), "-p", "(hd0,msdos1)/boot/grub",
        "-c", str(script), "-o", str(core), *_GRUB_MODULES,
    )  # fmt: skip
    image = core.read_bytes()
    for path in (script, core):
        path.unlink()
    if len(image) > (START - 1) * SECTOR:
        raise SetupError(f"image {job.image.name}: GRUB does not fit before the partition")
    return image


def _file_system(job: Job, root: Path, raw: Path, layout: Layout) -> None:
    config = job.home / "mke2fs.conf"
    config.write_text(_FEATURES, encoding="ascii")
    own = identity(job, "root")
    blocks = (layout.size * 2048 - START) // 8
    command = as_root(
        "mkfs.ext4", "-q", "-F", "-d", str(root), "-U", own, "-L", "root", "-m", "1",
        "-J", f"size={layout.journal}", "-b", "4096",
        "-E", f"offset={START * SECTOR},hash_seed={own},lazy_itable_init=1,nodiscard",
        str(raw), str(blocks),
    )  # fmt: skip
    try:
        must(job, *command, env={"MKE2FS_CONFIG": str(config), **_STILL})
    except SetupError as error:
        if not re.search(r"Could not allocate (block|inode)", str(error)):
            raise
        raise RejectedError(
            f"image {job.image.name} does not fit on a disk of {layout.size} MiB",
            hint="give it a larger `size`",
        ) from error
    config.unlink()


def _stand_still(job: Job, root: Path, raw: Path) -> None:
    """Set the times of every inode: mkfs takes them from files, whose ctime nobody can choose."""
    inodes = [f"<{number}>" for number in range(1, _FIRST_FILE)]
    inodes += [f'"/{path.relative_to(root)}"' for path in sorted(root.rglob("*"))]
    script = job.home / "times"
    script.write_text(
        "".join(
            f"set_inode_field {inode} {field} @{EPOCH}\n"
            for inode in (*inodes, "/lost+found")
            for field in ("atime", "ctime", "mtime", "crtime")
        ),
        encoding="ascii",
    )
    place = f"{raw}?offset={START * SECTOR}"
    must(job, "debugfs", "-w", "-f", str(script), place, env=_STILL)
    script.unlink()
