"""Which disk a Proxmox guest boots from, as its configuration tells."""

from __future__ import annotations

import pytest

from essaim.drivers.proxmox import boot_disk

CD = "local:iso/debian.iso,media=cdrom"
SEED = "ceph:vm-9-cloudinit,media=cdrom,size=4M"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"rootfs": "ceph:base-9-disk-0,size=8G"}, "rootfs"),
        ({"rootfs": "ceph:base-9-disk-0,size=8G", "mp0": "ceph:x,mp=/data"}, "rootfs"),
        ({"boot": "order=virtio0;net0", "virtio0": "ceph:a", "scsi0": "ceph:b"}, "virtio0"),
        ({"boot": "order=ide2;scsi0", "ide2": CD, "scsi0": "ceph:b"}, "scsi0"),
        ({"boot": "order=ide2;sata0", "ide2": SEED, "sata0": "ceph:b"}, "sata0"),
        ({"boot": "cdn", "bootdisk": "virtio1", "virtio0": "a:x", "virtio1": "a:y"}, "virtio1"),
        ({"bootdisk": "ide0", "ide0": "ceph:b", "scsi1": "ceph:c"}, "ide0"),
        ({"boot": "order=net0", "scsi5": "ceph:b"}, "scsi5"),
        ({"boot": "order=scsi0", "scsi0": "none,media=cdrom", "sata1": "ceph:b"}, "sata1"),
        ({"ide2": CD, "sata0": "ceph:b", "virtio15": "ceph:c"}, "virtio15"),
        ({"ide0": "ceph:b", "ide2": SEED}, "ide0"),
        ({"scsi30": "file=ceph:b,size=8G"}, "scsi30"),
        ({"ide2": CD, "net0": "virtio=AA", "unused0": "ceph:b", "efidisk0": "ceph:e"}, ""),
        ({}, ""),
    ],
)
def test_the_disk_a_guest_boots_from_is_found(config, key):
    assert boot_disk.find(config) == key


def test_what_is_known_of_the_drives_of_a_guest():
    disks = boot_disk.read(
        {"boot": "order=sata0", "sata0": "ceph:base-9-disk-0,size=8G", "ide2": SEED}
    )
    assert (disks.boot, disks.storage, disks.size) == ("sata0", "ceph", 8 << 30)
    assert disks.cloud_init
    disks = boot_disk.read({"scsi0": "local-lvm:base-9,iothread=1,size=2560M", "ide3": CD})
    assert (disks.storage, disks.size, disks.cloud_init) == ("local-lvm", 2560 << 20, False)
    assert disks.storages == {"local-lvm", "local"}
    assert boot_disk.read({"rootfs": "dir:9/base-9-disk-0.raw"}).size == 0
    assert boot_disk.read({"ide2": "dir:9/vm-9-cloudinit.qcow2,media=cdrom"}).cloud_init
