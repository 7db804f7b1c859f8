"""Programs disks are made and booted with, installed when root."""

from __future__ import annotations

import pytest

from essaim.model.errors import SetupError
from essaim_lab import computer

PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "qemu-img": "qemu-utils",
    "grub-mkimage": "grub-pc-bin",
    "mkfs.ext4": "e2fsprogs",
    "qemu-system-x86_64": "qemu-system-x86",
    "genisoimage": "genisoimage",
    "ssh": "openssh-client",
    "packer": "packer",
}


def need(*programs: str) -> None:
    """Install what is missing; skip where that is not possible."""
    wanted = {name: PROGRAMS[name] for name in programs}
    if "grub-mkimage" in programs:
        wanted["/usr/lib/grub/i386-pc/boot.img"] = "grub-pc-bin"
    try:
        computer.need(wanted)
    except SetupError as error:
        pytest.skip(error.what)
