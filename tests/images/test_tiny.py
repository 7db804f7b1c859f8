"""The smallest machine: built as it is shipped, booted for real, and the same each time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from essaim.config.images import find_image
from essaim.images import builders, tiny
from essaim.images.cache import Images
from essaim.model.errors import RejectedError, SetupError
from essaim.model.machines import Form
from essaim.model.stacks import Image
from images.tools import need
from images.virtual import ACCESS_MAC, MAC, guest
from patience import in_test_libvirt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def image() -> Image:
    return find_image("tiny", str(ROOT))


@pytest.fixture(scope="module")
def disk(image, shared) -> Path:
    need("mmdebstrap", "qemu-img", "grub-mkimage", "mkfs.ext4")
    return Images(shared).build(image, lambda _line: None, Form.DISK)


@in_test_libvirt
def test_it_boots_to_ssh_keeps_its_disk_and_obeys_the_power_button(disk, tmp_path):
    need("qemu-system-x86_64", "genisoimage", "ssh")
    with guest(tmp_path / "vm", disk, memory=128) as it:
        it.start()
        it.wait()
        done = it.run("hostname; ip -o -4 address; cat /sys/class/net/*s*/address; ps; free -m")
        assert done.returncode == 0, done.stderr
        name, *rest = done.stdout.splitlines()
        text = "\n".join(rest)
        assert name == "n1"
        assert "access    inet 10.0.2.15/24" in text
        assert "cluster    inet 10.77.0.5/24" in text
        assert MAC in text
        assert ACCESS_MAC in text

        # What roles and their steps ask of a machine.
        script = (
            "set -e; useradd --create-home --user-group --uid 2000 --shell /bin/bash "
            "--password '*' student; test \"$(id -u student)\" = 2000; test -d /home/student; "
            "install -d -o student -g student -m 0750 /run/x; stat -c '%a %U' /run/x; "
            "pgrep -x dropbear >/dev/null; ! pgrep -x no-such-thing; "
            "printf aGk= | base64 -d; timeout -k 1 5 true; ping -c 1 -w 5 10.77.0.5 >/dev/null; "
            "stat -c %a /etc/shadow; echo kept >/root/file"
        )
        done = it.run(script)
        assert (done.stdout, done.returncode) == ("750 student\nhi600\n", 0), done.stderr
        it.press_power()
        assert "Power down" in it.printed()

        # Its own self again, with the file, even when the seed is gone.
        (it.place / "seed.iso").write_bytes(bytes(1 << 20))
        it.start()
        it.wait()
        done = it.run("cat /root/file; hostname; ip -o -4 address show cluster")
        assert done.stdout.startswith("kept\nn1\n")
        assert "10.77.0.5/24" in done.stdout


def test_the_manifest_tells_what_it_was_made_of(disk, image, shared):
    manifest = json.loads((disk.parent / "manifest.json").read_bytes())
    assert (manifest["form"], manifest["builder"]) == ("disk", "tiny")
    assert manifest["virtual_size"] == 256 << 20
    assert manifest["size"] == disk.stat().st_size < 25_000_000
    assert manifest["kernel"].endswith("-cloud-amd64")
    assert all(len(digest) == 64 for digest in manifest["files"].values())
    assert manifest["packages"]["dropbear-bin"]
    assert all(manifest["tools"].values())
    built = next(one for one in Images(shared).list() if one.path == disk)
    assert (built.form, built.size) == (Form.DISK, disk.stat().st_size)
    assert Images(shared).ready(image) is None, "there is no root file system of it"
    assert Images(shared).ready(image, Form.DISK) == disk


def test_it_holds_no_identity(disk, tmp_path):
    raw = tmp_path / "raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", disk, raw], check=True)
    place = f"{raw}?offset={1 << 20}"

    def listed(folder: str) -> str:
        words = ["debugfs", "-R", f"ls -p {folder}", place]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert "/busybox/" in listed("/usr/bin")
    names = {line.split("/")[5] for line in listed("/etc").splitlines() if line}
    assert "dropbear" not in names
    assert "essaim" not in names
    assert "/.ssh/" not in listed("/root")


BUILD = """
import json, os, sys
from pathlib import Path
from essaim.images.cache import Images
from essaim.model.machines import Form
from essaim.model.stacks import Image
os.umask(0o077)
image = Image(**json.loads(sys.argv[2]))
print(Images(Path(sys.argv[1])).build(image, lambda line: None, Form.DISK))
"""


@pytest.mark.root
def test_a_plain_user_makes_the_same_disk_bit_by_bit(disk, image, shared, somebody, tmp_path):
    """From the same packages: elsewhere, later, with other rights for new files, without root."""
    cache = somebody.home / "tiny"
    one = json.loads((disk.parent / "manifest.json").read_bytes())
    (cache / "archives").mkdir(parents=True)
    for name in one["files"]:
        shutil.copy(shared / "archives" / name, cache / "archives")
    subprocess.run(["chown", "-R", f"{somebody.uid}:{somebody.gid}", str(cache)], check=True)
    fields = {key: getattr(image, key) for key in ("name", "builder", "digest", "settings")}
    done = somebody.run_python("-c", BUILD, str(cache), json.dumps(fields))
    assert done.returncode == 0, done.stdout + done.stderr
    again = Path(done.stdout.strip())
    other = json.loads((again.parent / "manifest.json").read_bytes())
    assert other["mode"] == "rootless"
    if one["files"] != other["files"]:  # the mirror has newer packages than the disk in the cache
        disk = Images(tmp_path).build(image, lambda _line: None, Form.DISK)
        one = json.loads((disk.parent / "manifest.json").read_bytes())
    assert one["sha256"] == other["sha256"]
    assert disk.read_bytes() == again.read_bytes()
    assert sorted(path.name for path in again.parent.iterdir()) == ["disk.qcow2", "manifest.json"]
    assert again.stat().st_uid == somebody.uid
    # All that lies there is linked into other builds: a lock of apt would make them wait.
    assert {path.suffix for path in (cache / "archives").iterdir()} == {".deb"}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, "suite"),
        ({"suite": "bookworm", "size": "big"}, "size"),
        ({"suite": "bookworm", "size": 3}, "size"),
        ({"suite": "bookworm", "modules": ["a b"]}, "modules"),
        ({"suite": "bookworm", "kernel": "$(reboot)"}, "kernel"),
        ({"suite": "bookworm", "packages": ["-o"]}, "packages"),
        ({"suite": "bookworm", "commands": [["true"]]}, "commands"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, image, settings, word):
    with pytest.raises(RejectedError, match=word):
        Images(tmp_path).build(replace(image, settings=settings), lambda _line: None, Form.DISK)
    assert os.listdir(tmp_path) == []


def test_it_has_no_root_file_system(tmp_path, image):
    with pytest.raises(RejectedError, match="builder tiny makes no rootfs, only disk") as caught:
        Images(tmp_path).build(image, lambda _line: None)
    assert "debian" in caught.value.hint
    assert builders.forms_of(image) == [Form.DISK]


def test_missing_tools_are_named_with_the_command_that_installs_them(tmp_path, image, monkeypatch):
    monkeypatch.setattr("essaim.images.inside.environment", lambda: {"PATH": str(tmp_path)})
    with pytest.raises(SetupError) as caught:
        Images(tmp_path).build(image, lambda _line: None, Form.DISK)
    wanted = {"e2fsprogs", "grub-pc-bin", "mmdebstrap", "qemu-utils"}
    assert wanted <= set(caught.value.hint.removeprefix("sudo apt-get install ").split())


def test_another_builder_is_another_edition():
    assert len(tiny.EDITION) == 8
