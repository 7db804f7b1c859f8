"""What a virtual machine finds at its first boot: a small disk in the form cloud-init reads.

Images without cloud-init find the same in the folder `essaim`, as plain files.
"""

from __future__ import annotations

import functools
import hashlib
import io
import ipaddress
import json
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from essaim.model.errors import MissingExtraError
from essaim.remote.keyring import public_half

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.model.machines import Seed
    from essaim.model.stacks import Machine, Network

#: What cloud-init looks for among the labels of disks.
LABEL = "cidata"
#: The names of a machine's interfaces: the one it is reached through, and the one to its peers.
ACCESS, CLUSTER = "access", "cluster"
#: When every seed was made: the same input gives the same bytes.
_MADE_AT = 315_532_800.0  # 1980


def seed_files(
    machine: Machine, network: Network, seed: Seed, *, mac: str, access_mac: str
) -> dict[str, bytes]:
    """Give the files of a machine's seed by name; the same for the same arguments.

    `mac` is that of the interface to its peers, `access_mac` that of the one it is reached through.
    They hold the machine's private host key: whoever keeps them keeps a secret.
    """
    prefix = ipaddress.ip_network(network.cidr).prefixlen
    address = f"{machine.address}/{prefix}"
    public = public_half(seed.host_key.encode())
    instance = hashlib.sha256(f"{machine.name}\n{public}".encode()).hexdigest()[:16]
    return {
        "meta-data": _document(
            # The same disk with another instance is another machine to cloud-init.
            {"instance-id": f"essaim-{instance}", "local-hostname": seed.hostname}
        ),
        "user-data": b"#cloud-config\n" + _document({**_identity(seed, public), **seed.user_data}),
        "network-config": _document(_network(address, mac=mac, access_mac=access_mac)),
        "essaim/hostname": _line(seed.hostname),
        "essaim/address": _line(address),
        "essaim/mac": _line(mac),
        "essaim/host_key": seed.host_key.encode(),
        "essaim/authorized_keys": _line(*seed.authorized_keys),
    }


def seed_iso(files: Mapping[str, bytes]) -> bytes:
    """Give a disk image with those files, as ISO 9660 labelled `cidata`; the same for the same."""
    iso = _library().PyCdlib()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=LABEL)
    folders = sorted({name.rpartition("/")[0] for name in files} - {""})
    for number, folder in enumerate(folders):
        iso.add_directory(f"/D{number}", rr_name=folder, joliet_path=f"/{folder}")
    for number, (name, body) in enumerate(sorted(files.items())):
        folder, _, own = name.rpartition("/")
        inside = f"/D{folders.index(folder)}" if folder else ""
        # Plain ISO 9660 has short names in capitals only; everybody reads one of the others.
        iso.add_fp(
            io.BytesIO(body),
            len(body),
            f"{inside}/F{number}.;1",
            rr_name=own,
            joliet_path=f"/{name}",
            file_mode=0o100400,
        )
    disk = io.BytesIO()
    iso.write_fp(disk)
    iso.close()
    return disk.getvalue()


def _identity(seed: Seed, public: str) -> dict[str, Any]:
    """Who the machine is and who may enter, and nothing that would take time or a network."""
    return {
        "hostname": seed.hostname,
        "preserve_hostname": False,
        "manage_etc_hosts": False,  # the role `names` writes it
        "users": [{"name": "root", "lock_passwd": False}],  # nobody else, and by key only
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_authorized_keys": list(seed.authorized_keys),
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": seed.host_key, "ed25519_public": public},
        "ssh": {"emit_keys_to_console": False},
        "no_ssh_fingerprints": True,
        "growpart": {"mode": "auto", "devices": ["/"]},
        "resize_rootfs": True,
        "apt": {"preserve_sources_list": True},
        "package_update": False,
        "package_upgrade": False,
        "ntp": {"enabled": False},
        "locale": "C.UTF-8",  # nothing to generate
    }


def _network(address: str, *, mac: str, access_mac: str) -> dict[str, Any]:
    # Renamed, not only matched: cloud-init's writers for ifupdown and systemd-networkd go by name.
    # Optional, so that no boot waits for a network that is slow to come.
    return {
        "version": 2,
        "ethernets": {
            ACCESS: {
                "match": {"macaddress": access_mac.lower()},
                "set-name": ACCESS,
                "dhcp4": True,
                "dhcp6": False,
                "optional": True,
            },
            CLUSTER: {
                "match": {"macaddress": mac.lower()},
                "set-name": CLUSTER,
                "dhcp4": False,
                "dhcp6": False,
                "addresses": [address],
                "optional": True,
            },
        },
    }


def _document(content: Mapping[str, Any]) -> bytes:
    """Write a document as JSON, which every reader of YAML takes, and which needs no library."""
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def _line(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


@functools.cache
def _library() -> ModuleType:
    """The library that writes disks, with its clock stopped: it would write the time in each."""
    try:
        from pycdlib import dates, headervd, pycdlib  # noqa: PLC0415 - in the extra `libvirt` only
    except ImportError as error:
        raise MissingExtraError(
            f"the disk that tells a machine who it is cannot be written: {error}", "libvirt"
        ) from error
    still = SimpleNamespace(**vars(time))
    still.time, still.localtime = lambda: _MADE_AT, time.gmtime
    for module in (dates, headervd, pycdlib):
        setattr(module, "time", still)  # noqa: B010 - no module declares the ones it imports
    return pycdlib
