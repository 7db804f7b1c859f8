"""Disks somebody else made are taken whole, checked, and never lead to other files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from essaim.config.images import find_image
from essaim.images.cache import Images
from essaim.model.errors import RejectedError
from essaim.model.machines import Form
from images.tools import need

MARK = b"this is the boot sector of nothing"


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    need("qemu-img")


@pytest.fixture
def lab(tmp_path) -> Path:
    """A lab with a raw disk in it."""
    place = tmp_path / "lab"
    (place / "images").mkdir(parents=True)
    (place / "disks").mkdir()
    (place / "essaim.yaml").write_text("{}\n")
    with (place / "disks/plain.raw").open("wb") as file:
        file.truncate(3 << 20)
        file.write(MARK)
    return place


def make(kind: str, lab: Path, *options: str) -> Path:
    target = lab / "disks" / f"other.{kind}"
    words = ["qemu-img", "convert", "-f", "raw", "-O", kind, *options]
    subprocess.run([*words, lab / "disks/plain.raw", target], check=True)
    return target


def describe(lab: Path, text: str) -> None:
    (lab / "images/other.yaml").write_text(f"builder: import\n{text}\n")


def build(lab: Path) -> Path:
    images = Images(lab.parent / "cache")
    return images.build(find_image("other", str(lab)), lambda _line: None, Form.DISK)


def content(disk: Path, tmp_path: Path) -> bytes:
    raw = tmp_path / "out.raw"
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", disk, raw], check=True)
    return raw.read_bytes()


@pytest.mark.parametrize("kind", ["raw", "qcow2", "vmdk", "vdi", "vhdx"])
def test_disks_of_many_kinds_become_one_kind(lab, tmp_path, kind):
    path = lab / "disks/plain.raw" if kind == "raw" else make(kind, lab)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    describe(lab, f"path: disks/{path.name}\nsha256: {found}")
    disk = build(lab)
    assert content(disk, tmp_path).startswith(MARK)
    manifest = json.loads((disk.parent / "manifest.json").read_bytes())
    assert manifest["source"]["sha256"] == found
    assert manifest["sha256"] == hashlib.sha256(disk.read_bytes()).hexdigest()
    assert manifest["virtual_size"] == 3 << 20


def ova(lab: Path, *, members: dict[str, bytes]) -> None:
    with tarfile.open(lab / "disks/other.ova", "w") as archive:
        for name, body in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))


def test_the_disk_of_an_ova_is_taken_wherever_it_wants_to_go(lab, tmp_path):
    body = make("vmdk", lab, "-o", "subformat=streamOptimized").read_bytes()
    digest = hashlib.sha256(body).hexdigest()
    name = "../../../box-disk1.vmdk"
    manifest = f"SHA256({name})= {digest}\n".encode()
    ova(lab, members={"box.ovf": b"<Envelope/>", name: body, "box.mf": manifest})
    describe(lab, "path: disks/other.ova")
    disk = build(lab)
    assert content(disk, tmp_path).startswith(MARK)
    assert sorted(os.listdir(disk.parent)) == ["disk.qcow2", "manifest.json"]
    assert not list(tmp_path.rglob("box-disk1.vmdk"))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"a.vmdk": b"x", "b.vmdk": b"y"}, "holds 2 disks"),
        ({"a.ovf": b"x"}, "holds 0 disks"),
        ({"a.vmdk": b"x", "a.mf": b"SHA256(a.vmdk)= " + b"0" * 64}, "not the one its manifest"),
        ({"a.vmdk": b"x"}, "cannot be read as a disk"),
    ],
)
def test_an_ova_that_is_not_as_it_should_be_is_refused(lab, members, words):
    ova(lab, members=members)
    describe(lab, "path: disks/other.ova")
    with pytest.raises(RejectedError, match=words):
        build(lab)
    assert Images(lab.parent / "cache").list() == []


def test_something_else_called_ova_is_refused(lab):
    (lab / "disks/other.ova").write_bytes(b"no archive" * 100)
    describe(lab, "path: disks/other.ova")
    with pytest.raises(RejectedError, match="is no OVA"):
        build(lab)


def test_a_disk_that_would_read_other_files_is_refused(lab, tmp_path):
    """It could name any file of whoever builds."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * 1000)
    words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(secret), "-F", "raw"]
    subprocess.run([*words, lab / "disks/over.qcow2"], check=True)
    flat = lab / "disks/flat.vmdk"
    flat.write_text(
        "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n"
        'createType="monolithicFlat"\n'
        f'RW 8 FLAT "{secret}" 0\n'
    )
    (lab / "disks/posing.raw").write_bytes((lab / "disks/over.qcow2").read_bytes())
    for name in ("over.qcow2", "flat.vmdk", "posing.raw"):
        describe(lab, f"path: disks/{name}")
        with pytest.raises(RejectedError, match=r"only a part of a disk|is no raw disk|read as"):
            build(lab)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path: disks/none.raw", "there is no .*none.raw"),
        ("sha256: abc", "`path` must say"),
        ("path: disks/plain.raw\nsha256: abc", "64 digits"),
        ("path: disks/plain.raw\nformat: zip", "'zip' is not known"),
        ("path: essaim.yaml", "its name does not tell"),
        ("path: disks/plain.raw\nsha: x", "no setting sha"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(lab, text, words):
    describe(lab, text)
    with pytest.raises(RejectedError, match=words) as caught:
        build(lab)
    assert caught.value.what.startswith("image other: ")
    assert not (lab.parent / "cache").exists()


def test_another_file_than_the_one_asked_for_is_refused(lab):
    describe(lab, f"path: disks/plain.raw\nsha256: {'0' * 64}")
    with pytest.raises(RejectedError, match=r"its sha256 is [0-9a-f]{64}"):
        build(lab)


def test_a_file_that_was_replaced_is_another_image_and_a_moved_lab_is_the_same(lab, tmp_path):
    describe(lab, "path: disks/plain.raw")
    before = find_image("other", str(lab)).digest
    with (lab / "disks/plain.raw").open("r+b") as file:
        file.write(b"another")
    os.utime(lab / "disks/plain.raw", (5, 5))
    changed = find_image("other", str(lab)).digest
    assert changed != before
    moved = lab.rename(tmp_path / "moved")
    assert find_image("other", str(moved)).digest == changed
