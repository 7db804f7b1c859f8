"""Programs disks are made and booted with, installed when root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
    missing = {PROGRAMS[name] for name in programs if shutil.which(name) is None}
    if "grub-mkimage" in programs and not Path("/usr/lib/grub/i386-pc/boot.img").exists():
        missing.add("grub-pc-bin")
    if not missing:
        return
    if os.geteuid() != 0:
        pytest.skip(f"needs {' '.join(sorted(missing))}")
    words = ["-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq", "--no-install-recommends"]
    subprocess.run(["apt-get", *words, *sorted(missing)], check=True)
