"""The builder `debian` for virtual machines: the sandbox's packages, with all it takes to boot.

Settings are those of the root file system, and `disk`: `size` (MiB, 4096), `compress` (true) and
`mitigations` (true; false leaves the processor's faults open to programs, for speed).
What is added to Debian's files is in `files/debian`, what is done to them in `files/debian-setup`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.images import debian, disks, initrds
from essaim.images.debian_root import check_server, facts
from essaim.images.disks import UNPROTECTED
from essaim.images.inside import as_root, check_tools, remove_tree
from essaim.images.programs import must, version
from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from essaim.images.builders import Job
    from essaim.model.stacks import Image

FILES = Path(__file__).parent / "files" / "debian"
SETUP = FILES.with_name("debian-setup")
PACKAGES = (
    "linux-image-cloud-amd64", "systemd-sysv", "udev", "dbus", "kmod", "busybox-static",
    "cloud-init", "cloud-guest-utils", "fdisk", "e2fsprogs", "iproute2",
)  # fmt: skip
_DISK_SETTINGS = {"size", "compress", "mitigations"}
#: Read by the kernel's scripts: Debian's own initrd takes a minute to make and is not used.
_ENV = {"INITRD": "No"}


def _edition() -> str:
    files = sorted(path for path in FILES.rglob("*") if path.is_file())
    parts = [path.read_bytes() for path in (SETUP, *files)]
    return hashlib.sha256(b"\0".join((initrds.SCRIPT.encode(), *parts))).hexdigest()[:8]


EDITION = _edition()


def check(image: Image) -> None:
    """See that the settings make sense and that there is all a disk is made with."""
    debian.recipe(image.name, image.settings)
    layout(image)
    check_tools(**disks.TOOLS)
    disks.check_grub()


def layout(image: Image) -> disks.Layout:
    """Read the setting `disk`; RejectedError when it is not understood."""
    given = image.settings.get("disk", {})
    size = given.get("size", 4096) if isinstance(given, dict) else None
    least = 1024
    if not isinstance(size, int) or size < least or given.keys() - _DISK_SETTINGS:
        raise RejectedError(
            f"image {image.name}: disk {given!r} is not understood",
            hint=f"disk: {{size: MiB from {least} on, compress: true, mitigations: true}}",
        )
    commands = ("configfile (hd0,msdos1)/boot/grub/grub.cfg",)
    return disks.Layout(size=size, commands=commands, compress=bool(given.get("compress", True)))


def build(job: Job) -> dict[str, Any]:
    """Install, set up, and make the disk.

    Times and what packages' scripts make up differ from build to build; the manifest tells the
    packages, and `sha256` the disk that was made of them.
    """
    plain = debian.recipe(job.image.name, job.image.settings)
    packages = tuple(dict.fromkeys((*plain.packages, *PACKAGES)))
    wanted = dataclasses.replace(plain, packages=packages)
    root = job.home / "root"
    debian.build(
        job.image.name,
        wanted,
        target=root,
        archives=job.archives,
        log=job.log,
        lock=job.lock,
        say=job.say,
        env=_ENV,
    )
    check_server(job.image, root)
    made = facts(wanted, root)
    job.say("setting up what boots")
    kernel = _set_up(job, root)
    disks.make_disk(job, root, layout(job.image), still=False)
    remove_tree(root)
    made["tools"] |= {
        "mkfs.ext4": version("mkfs.ext4", option="-V"),
        "grub-mkimage": version("grub-mkimage"),
        "qemu-img": version("qemu-img"),
    }
    return {**made, "kernel": kernel.version, "edition": EDITION}


def _set_up(job: Job, root: Path) -> initrds.Kernel:
    """Add our files, settle what starts, and give the kernel its initrd."""
    kernel = initrds.Kernel.of(root)
    boot = job.home / "boot"
    boot.mkdir()
    busybox = next(p for p in (root / "bin/busybox", root / "usr/bin/busybox") if p.exists())
    (boot / "initrd").write_bytes(initrds.initrd(kernel, busybox))
    inside = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8")
    script = (
        'umask 022; cp -r --no-preserve=mode,ownership,timestamps "$2/." "$1/"; '
        'mkdir -p "$1/boot/essaim"; cp "$3/initrd" "$1/boot/essaim/initrd"; '
        'ln "$1/boot/vmlinuz-$4" "$1/boot/essaim/vmlinuz"; '
        'rm -f "$1/etc/resolv.conf"; '
        'sed -i "s/^linux .*/&$6/" "$1/boot/grub/grub.cfg"; '
        'cp "$5" "$1/essaim-setup"; root=$1; shift 6; '
        'chroot "$root" "$@" sh /essaim-setup; rm "$root/essaim-setup"'
    )
    options = "" if job.image.settings.get("disk", {}).get("mitigations", True) else UNPROTECTED
    words = (str(root), str(FILES), str(boot), kernel.version, str(SETUP), options, *inside)
    must(job, *as_root("sh", "-euc", script, "sh", *words))
    shutil.rmtree(boot)
    return kernel
