"""A Debian machine from the same description as a sandbox's: booted, entered, and used."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from essaim.config.images import find_image
from essaim.images import debian_disk
from essaim.images.cache import Images
from essaim.model.errors import RejectedError
from essaim.model.machines import Form
from images.tools import need
from images.virtual import guest
from patience import in_test_libvirt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def disk(shared) -> Path:
    need("mmdebstrap", "qemu-img", "grub-mkimage", "mkfs.ext4")
    image = find_image("slurm", str(ROOT))
    return Images(shared).build(image, lambda _line: None, Form.DISK)


@in_test_libvirt
@pytest.mark.timeout(1500)
def test_it_boots_with_nothing_running_that_its_roles_did_not_start(disk, tmp_path):
    need("qemu-system-x86_64", "genisoimage", "ssh")
    with guest(tmp_path / "vm", disk, memory=512) as it:
        it.start()
        it.wait()
        done = it.run("cloud-init status --wait >/dev/null; cloud-init status", within=280)
        assert "status: done" in done.stdout, done.stdout + done.stderr
        done = it.run(
            "hostname; cat /etc/hosts; systemctl --failed --no-legend; ip -o -4 address; "
            "df --output=size -m / | tail -n 1",
            within=120,
        )
        lines = done.stdout.splitlines()
        assert lines[0] == "n1"
        assert lines[1] == "127.0.0.1 localhost", "cloud-init wrote /etc/hosts, or a unit failed"
        assert "cluster    inet 10.77.0.5/24" in done.stdout
        assert "access    inet 10.0.2.15/24" in done.stdout
        assert int(lines[-1]) > 5000, "the partition did not grow with the disk"

        processes = it.run("ps -e -o comm=", within=120).stdout.split()
        assert "sshd" in processes
        assert not {"munged", "slurmd", "slurmctld", "cron"} & set(processes)
        listening = it.run("ss -Hltn", within=120).stdout.splitlines()
        assert {line.split()[3].rpartition(":")[2] for line in listening} == {"22"}
        # As the role does it; the daemon must outlive the session it was started in.
        start = (
            "set -e; cd /etc/munge; head -c 64 /dev/urandom >munge.key; chown munge: munge.key; "
            "chmod 0400 munge.key; install -d -o munge -g munge -m 0755 /run/munge; "
            "runuser -u munge -- munged </dev/null >/dev/null 2>&1"
        )
        done = it.run(start, within=120)
        assert done.returncode == 0, done.stderr
        assert it.run("munge -n | unmunge | grep -q Success", within=120).returncode == 0
        identity = it.run("cat /etc/machine-id; ls /etc/ssh/ssh_host_*_key").stdout
        assert len(identity.split()[0]) == 32
        assert identity.split()[1:] == ["/etc/ssh/ssh_host_ed25519_key"]
        it.press_power()


@in_test_libvirt
@pytest.mark.timeout(1500)
def test_the_manifest_lists_packages_and_kernel(disk):
    manifest = json.loads((disk.parent / "manifest.json").read_bytes())
    assert manifest["form"] == "disk"
    assert manifest["packages"]["slurmctld"]
    assert manifest["packages"]["cloud-init"]
    assert manifest["kernel"].endswith("cloud-amd64")
    assert manifest["edition"] == debian_disk.EDITION
    assert sorted(os.listdir(disk.parent)) == ["disk.qcow2", "manifest.json"]


@pytest.mark.parametrize(
    "given", [{"size": 5}, {"size": "4G"}, {"larger": 4096}, "large", {"size": 2048, "x": 1}]
)
def test_settings_of_the_disk_that_make_no_sense_are_refused(tmp_path, given):
    image = find_image("base", str(ROOT))
    image = replace(image, settings={**image.settings, "disk": given})
    with pytest.raises(RejectedError, match=r"image base: disk .* is not understood"):
        Images(tmp_path).build(image, lambda _line: None, Form.DISK)
    assert os.listdir(tmp_path) == []
