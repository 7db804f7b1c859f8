"""Templates of Packer are run by it; what is hard to make it do, a small stand-in does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from essaim.config.images import find_image
from essaim.images.cache import Images
from essaim.model.errors import RejectedError, SetupError
from essaim.model.machines import Form
from images.tools import need

#: A FAKE of the program `packer`: makes a disk with qemu-img and prints what Packer 1.6 prints
#: with -machine-readable.  It knows `init`, `build` and `--version`, and does what $FAKE says.
FAKE = r"""#!/bin/sh
set -e
case $1 in
  --version) echo "Packer v0 (fake)"; exit ;;
  init) echo init >>"$PACKER_NOTES"; exit ;;
esac
echo "$@" >>"$PACKER_NOTES"
pwd >>"$PACKER_NOTES"
echo "secret=$PKR_VAR_password" >>"$PACKER_NOTES"
for last; do :; done
test -e "$last"
say() { echo "1700000000,,ui,say,$1"; }
say '==> qemu: Installing%!(PACKER_COMMA) please wait'
case $PACKER_FAKE in
  fail) echo '1700000000,,ui,error,Build qemu errored: no such ISO'; exit 1 ;;
  nothing) exit 0 ;;
  outside) where=../../../elsewhere ;;
  *) where=output ;;
esac
mkdir -p "$where"
qemu-img create -q -f qcow2 "$where/box" 4M
say "==> Builds finished."
echo "1700000000,qemu,artifact-count,1"
echo "1700000000,qemu,artifact,0,builder-id,transcend.qemu"
echo "1700000000,qemu,artifact,0,files-count,1"
echo "1700000000,qemu,artifact,0,file,0,$where/box"
"""


#: A boot sector that lets ten seconds go by and switches the machine off through its ACPI port:
#: the shortest installation.  If it ended in Packer's first two seconds, which may be long ones on
#: a busy computer, Packer might miss it.
OFF = bytes.fromhex("b486 b99800 ba8096 cd15 ba0406 b80020 ef f4 ebfd")
TEMPLATE = {
    "variables": {"size": "3M"},
    "builders": [
        {
            "type": "qemu", "disk_image": True, "iso_url": "off.qcow2", "iso_checksum": "none",
            "format": "qcow2", "accelerator": "tcg", "communicator": "none", "headless": True,
            "disable_vnc": True, "boot_wait": "1s", "shutdown_timeout": "4m",
            "output_directory": "output", "vm_name": "box", "disk_size": "{{user `size`}}",
        }
    ],
}  # fmt: skip


def test_the_real_packer_makes_a_disk(tmp_path):
    need("packer", "qemu-img", "qemu-system-x86_64")
    place = tmp_path / "lab"
    (place / "images").mkdir(parents=True)
    (place / "essaim.yaml").write_text("{}\n")
    (place / "off.raw").write_bytes(OFF.ljust(510, b"\0") + b"\x55\xaa" + bytes(1 << 20))
    words = ["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "off.raw", "off.qcow2"]
    subprocess.run(words, cwd=place, check=True)
    (place / "box.json").write_text(json.dumps(TEMPLATE))
    (place / "images/box.yaml").write_text("builder: packer\npath: box.json\nvars: {size: 4M}\n")
    said: list[str] = []
    disk = build(place, said)
    assert any(line.endswith("Starting VM, booting disk image") for line in said)
    manifest = json.loads((disk.parent / "manifest.json").read_bytes())
    assert manifest["virtual_size"] == 4 << 20
    assert manifest["tools"]["packer"]


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Path:
    need("qemu-img")
    programs, place = tmp_path / "bin", tmp_path / "lab"
    programs.mkdir()
    (programs / "packer").write_text(FAKE)
    (programs / "packer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PACKER_NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("PKR_VAR_password", "hush")
    (place / "images").mkdir(parents=True)
    (place / "packer").mkdir()
    (place / "essaim.yaml").write_text("{}\n")
    (place / "packer/box.pkr.hcl").write_text("source {}\n")
    (place / "images/box.yaml").write_text(
        "builder: packer\npath: packer/box.pkr.hcl\nvars: {release: 12}\n"
    )
    return place


def build(lab: Path, said: list[str]) -> Path:
    images = Images(lab.parent / "cache")
    return images.build(find_image("box", str(lab)), said.append, Form.DISK)


def test_the_disk_a_template_makes_is_taken(lab, tmp_path):
    said: list[str] = []
    disk = build(lab, said)
    assert "==> qemu: Installing, please wait" in said
    init, words, where, secret = (tmp_path / "notes").read_text().splitlines()
    assert init == "init"
    assert words == "build -machine-readable -color=false -var=release=12 box.pkr.hcl"
    assert where.endswith("/work")
    assert secret == "secret=hush"
    manifest = json.loads((disk.parent / "manifest.json").read_bytes())
    assert manifest["tools"]["packer"] == "Packer v0 (fake)"
    assert manifest["virtual_size"] == 4 << 20
    assert "hush" not in json.dumps(manifest)
    assert sorted(os.listdir(disk.parent)) == ["disk.qcow2", "manifest.json"]
    assert os.listdir(lab / "packer") == ["box.pkr.hcl"], "the lab is left as it was"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("fail", "Build qemu errored: no such ISO"),
        ("nothing", "the template made nothing"),
        ("outside", "the template made box, not one qcow2"),
    ],
)
def test_a_template_that_fails_is_shown(lab, monkeypatch, fault, words):
    monkeypatch.setenv("PACKER_FAKE", fault)
    with pytest.raises(RejectedError, match=words):
        build(lab, [])
    assert Images(lab.parent / "cache").list() == []


def test_without_packer_it_says_how_to_get_it(lab, monkeypatch):
    monkeypatch.setattr("essaim.images.packer.environment", lambda: {"PATH": "/nowhere"})
    with pytest.raises(SetupError, match="packer is not installed") as caught:
        build(lab, [])
    assert "apt-get install packer" in caught.value.hint


def test_a_changed_script_beside_the_template_is_another_image(lab):
    (lab / "packer/setup.sh").write_text("true\n")
    before = find_image("box", str(lab)).digest
    (lab / "packer/setup.sh").write_text("false\n")
    assert find_image("box", str(lab)).digest != before


@pytest.mark.parametrize("text", ["vars: [a]", "vars: {'a b': x}", "vars: {a: [b]}", "bars: {}"])
def test_settings_that_make_no_sense_are_refused(lab, text):
    (lab / "images/box.yaml").write_text(f"builder: packer\npath: packer/box.pkr.hcl\n{text}\n")
    with pytest.raises(RejectedError, match="image box: "):
        build(lab, [])
