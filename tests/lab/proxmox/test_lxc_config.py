"""What LXC is started with: as Proxmox VE would write it from the same file."""

from __future__ import annotations

from essaim_lab.simulators.proxmox.lxc_config import lxc_text, pve_text, raw_lines, shift

CONF = {
    "arch": "amd64",
    "hostname": "vm-alice",
    "description": "Alice - a",
    "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=10.60.1.5/20,type=veth",
    "mp0": "/mnt/pve/shared,mp=/srv/shared,ro=1",
    "mp1": "vol-ceph-1:vm-1-disk-1,mp=/data",
    "unprivileged": 1,
}
FILE = """\
#Alice - a
hostname: before
lxc.idmap: u 0 200000 65536
lxc.idmap: g 0 200000 65536
lxc.hook.mount: /var/lib/essaim/lxc/1/mount

[snapshot]
lxc.idmap: u 0 300000 65536
"""


def lxc(conf, raw) -> list[str]:
    text = lxc_text(conf, raw, rootfs="/r", address="10.60.1.5/8", gateway="10.0.0.1")
    return text.splitlines()


def test_the_api_rewrites_its_settings_and_keeps_lines_for_lxc():
    text = pve_text(CONF, FILE)
    assert text.startswith("#Alice - a\narch: amd64\nhostname: vm-alice\n")
    assert raw_lines(text) == raw_lines(FILE)
    assert pve_text(CONF, text) == text
    assert "300000" not in text


def test_an_id_map_of_the_file_replaces_the_usual_one():
    lines = lxc(CONF, raw_lines(FILE))
    assert [line for line in lines if "idmap" in line] == [
        "lxc.idmap = u 0 200000 65536",
        "lxc.idmap = g 0 200000 65536",
    ]
    assert shift(CONF, raw_lines(FILE)) == 200000
    usual = [line for line in lxc(CONF, []) if "idmap" in line]
    assert usual == ["lxc.idmap = u 0 100000 65536", "lxc.idmap = g 0 100000 65536"]
    assert shift(CONF, []) == 100000


def test_a_privileged_container_has_no_id_map():
    conf = {**CONF, "unprivileged": 0}
    assert not any("idmap" in line or "userns" in line for line in lxc(conf, []))
    assert shift(conf, []) == 0


def test_cards_mounts_and_hooks():
    lines = lxc(CONF, raw_lines(FILE))
    assert "lxc.uts.name = vm-alice" in lines
    assert "lxc.net.0.hwaddr = BC:24:11:00:00:01" in lines
    assert "lxc.net.0.ipv4.address = 10.60.1.5/8" in lines
    assert "lxc.hook.mount = /var/lib/essaim/lxc/1/mount" in lines
    mounts = [line for line in lines if line.startswith("lxc.mount.entry")]
    assert mounts == ["lxc.mount.entry = /mnt/pve/shared srv/shared none bind,create=dir,ro 0 0"]
