"""What a BIOS finds on a disk: GRUB where it looks for itself, and one partition."""

from __future__ import annotations

import io
import os
import struct
import subprocess
from pathlib import Path

import pytest

from essaim.images import disks
from essaim.images.builders import Job
from essaim.images.initrds import Kernel, initrd
from essaim.model.errors import RejectedError
from essaim.model.machines import Form
from essaim.model.stacks import Image
from images.tools import need


@pytest.fixture
def job(tmp_path) -> Job:
    need("qemu-img", "grub-mkimage", "mkfs.ext4")
    home = tmp_path / "home"
    home.mkdir()
    return Job(
        image=Image(name="some", builder="tiny", digest="d"),
        form=Form.DISK,
        home=home,
        archives=tmp_path,
        log=tmp_path / "log",
        lock=os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR),
        say=lambda _line: None,
    )


@pytest.fixture
def root(tmp_path) -> Path:
    place = tmp_path / "root"
    (place / "etc/with space").mkdir(parents=True)
    (place / "etc/with space/file").write_text("content\n")
    (place / "link").symlink_to("etc")
    return place


LAYOUT = disks.Layout(size=24, commands=("halt",), compress=False, journal=4)


def raw(job: Job) -> bytes:
    out = job.home / "out"
    subprocess.run(["qemu-img", "convert", "-O", "raw", job.result, out], check=True)
    return out.read_bytes()


def test_the_disk_is_laid_out_as_grub_expects(job, root):
    disks.make_disk(job, root, LAYOUT, still=True)
    body = raw(job)
    assert len(body) == 24 << 20
    assert body[510:512] == b"\x55\xaa"
    assert body[:440] == (disks.GRUB / "boot.img").read_bytes()[:440]
    active, kind, start, count = struct.unpack("<B3xB3xII", body[446:462])
    assert (active, kind, start) == (0x80, 0x83, 2048)
    assert start + count == len(body) // 512
    assert body[462:510] == bytes(48)
    # boot.img asks for sector 1; diskboot.img there says where the rest is, and how long.
    assert struct.unpack_from("<Q", body, 0x5C)[0] == 1
    first, length = struct.unpack_from("<QH", body, 512 + 500)
    assert first == 2
    assert 50 < length < 2047
    assert body[1080 + (1 << 20) : 1082 + (1 << 20)] == b"\x53\xef"  # ext4's own number


def test_the_same_files_give_the_same_disk_whenever_it_is_made(job, root):
    disks.make_disk(job, root, LAYOUT, still=True)
    first = job.result.read_bytes()
    job.result.unlink()
    for path in root.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    disks.make_disk(job, root, LAYOUT, still=True)
    assert job.result.read_bytes() == first
    other = disks.Layout(size=24, commands=("reboot",), compress=False, journal=4)
    job.result.unlink()
    disks.make_disk(job, root, other, still=True)
    assert job.result.read_bytes() != first


def test_the_file_system_is_sound(job, root, tmp_path):
    disks.make_disk(job, root, LAYOUT, still=True)
    part = tmp_path / "part"
    part.write_bytes(raw(job)[1 << 20 :])
    done = subprocess.run(["e2fsck", "-f", "-n", part], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    words = ["debugfs", "-R", 'cat "/etc/with space/file"', str(part)]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"content\n"


def test_what_does_not_fit_is_refused(job, root):
    (root / "large").write_bytes(os.urandom(20 << 20))
    with pytest.raises(RejectedError, match="does not fit on a disk of 24 MiB") as caught:
        disks.make_disk(job, root, LAYOUT, still=True)
    assert "size" in caught.value.hint


@pytest.fixture
def kernel(tmp_path) -> Path:
    """A folder in which two kernels and some modules lie."""
    place = tmp_path / "k"
    modules = place / "lib/modules/6.1.0-10-cloud/kernel/drivers"
    modules.mkdir(parents=True)
    (place / "boot").mkdir()
    for version in ("6.1.0-9-cloud", "6.1.0-10-cloud"):
        (place / "boot" / f"vmlinuz-{version}").write_bytes(b"")
    needs = {"a": "b-c,d", "b-c": "d", "d": "", "unused": "a"}
    for name, others in needs.items():
        text = f"\x7fELF\0license=GPL\0depends={others}\0name={name}\0"
        (modules / f"{name}.ko").write_bytes(text.encode())
    (place / "busybox").write_bytes(b"busybox")
    return place


def test_modules_come_after_those_they_need(kernel):
    found = Kernel.of(kernel)
    assert found.version == "6.1.0-10-cloud"
    assert [path.name for path in found.closure(["a"])] == ["d.ko", "b-c.ko", "a.ko"]
    assert [path.name for path in found.closure(["b_c", "built_in"])] == ["d.ko", "b-c.ko"]


def test_a_root_without_a_kernel_is_refused(tmp_path):
    with pytest.raises(RejectedError, match="no kernel"):
        Kernel.of(tmp_path)


def test_the_initrd_is_an_archive_the_kernel_can_read(kernel, tmp_path):
    made = initrd(Kernel.of(kernel), kernel / "busybox", ["a"])
    assert made == initrd(Kernel.of(kernel), kernel / "busybox", ["a"])
    out = tmp_path / "unpacked"
    out.mkdir()
    plain = subprocess.run(["gzip", "-d"], input=made, capture_output=True, check=True).stdout
    names = _read_newc(plain)
    assert names["modules"] == b"d.ko\nb-c.ko\na.ko\n"
    assert names["bin/busybox"] == b"busybox"
    assert names["init"].startswith(b"#!/bin/busybox sh\n")
    assert list(names) == sorted(names)


def _read_newc(body: bytes) -> dict[str, bytes]:
    """Read an archive by its description, with nothing of what wrote it."""
    found, stream = {}, io.BytesIO(body)
    while True:
        head = stream.read(110)
        assert head[:6] == b"070701"
        numbers = [int(head[6 + 8 * n : 14 + 8 * n], 16) for n in range(13)]
        size, name_size = numbers[6], numbers[11]
        name = stream.read(name_size).rstrip(b"\0").decode()
        stream.seek(-(-stream.tell() // 4) * 4)
        if name == "TRAILER!!!":
            return found
        found[name] = stream.read(size)
        stream.seek(-(-stream.tell() // 4) * 4)
