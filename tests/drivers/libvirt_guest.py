"""A guest of 512 bytes: says its words on the serial port, then echoes what is typed there."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SECTOR = 512
_CODE = bytes.fromhex(
    "31c0 8ed8 be317c"  # xor ax, ax; mov ds, ax; mov si, words
    "ac 84c0 7405 e81300 ebf6"  # print: lodsb; if zero goto echo; call put; goto print
    "bafd03 ec a801 74f8 baf803 ec e80200 ebef"  # echo: wait for a byte; call put; goto echo
    "50 bafd03 ec a820 74fb 58 baf803 ee c3"  # put: wait for the port; out; ret
)


def guest_disk(path: Path, words: str) -> Path:
    """Make a bootable disk of it."""
    body = _CODE + words.encode() + b"\0"
    sector = body.ljust(_SECTOR - 2, b"\0") + b"\x55\xaa"
    assert len(sector) == _SECTOR
    raw = path.with_suffix(".raw")
    raw.write_bytes(sector.ljust(1 << 20, b"\0"))
    make = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(path)]
    subprocess.run(make, check=True)
    raw.unlink()
    return path
