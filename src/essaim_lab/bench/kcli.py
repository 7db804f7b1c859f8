"""kcli, a peer that can use libvirt's session: on the server itself, with the same image.

It asks for free ports where it runs and lets everybody reach its machines, so it runs as the
server's account on the server, in a network of its own where nobody else is.  There its machines
cannot reach each other, and Essaim's cluster network has no counterpart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.bootstrap import cache_home
from essaim_lab.bench import virsh
from essaim_lab.bench.libvirt_server import Server
from essaim_lab.bench.rows import CannotRunError
from essaim_lab.bench.timing import timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim_lab.bench.virsh import Guest

VERSION = "99.0.202610251748"
NAME = f"kcli {VERSION}"
#: No PID namespace: nobody in it would bury an emulator, and libvirt waits until that has happened.
_APART = ("unshare", "--net")
_INSIDE = 'ip link set lo up && exec "$@"'
_CONFIG = """\
default: {client: local}
local: {type: kvm, host: 127.0.0.1, session: true, pool: POOL}
"""
_PROGRAM = "from kvirt.cli import cli; cli()"
_GIB = 1 << 30


def install() -> Path:
    """Give a folder with kcli and all it imports, made when it is not there."""
    folder = cache_home(os.environ) / "bench" / f"kcli-{VERSION}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        timed([*words, f"kcli=={VERSION}", "libvirt-python"], within=1200).require()
        (folder / "complete").touch()
    return folder


class Kcli:
    """kcli as the server's account types it."""

    def __init__(self, server: Server, pool: str, key: Path) -> None:
        self._server = server
        self._pool = pool
        self._key = key

    def turn(self, guests: Sequence[Guest]) -> tuple[float, float]:
        """Make as many machines and remove them; seconds of each."""
        packages = self._server.home / "kcli"
        if not packages.exists():
            shutil.copytree(install(), packages)
            folder = self._server.home / ".kcli"
            folder.mkdir()
            (folder / "config.yml").write_text(_CONFIG.replace("POOL", self._pool))
            os.chown(folder, self._server.uid, self._server.gid)
        # A libvirtd that still runs would start the machines in its own network.
        self._server.end_processes()
        asked = {
            "server": {key: str(value) for key, value in asdict(self._server).items()},
            "pool": self._pool,
            "key": str(self._key),
            "image": guests[0].base,
            "gib": max(1, guests[0].size // _GIB),
            "seed": str(guests[0].seed),
            "count": len(guests),
        }
        inside = [sys.executable, "-m", "essaim_lab.bench.kcli", json.dumps(asked)]
        command = [*_APART, "sh", "-c", _INSIDE, "sh", *inside]
        try:
            done = timed(command, within=virsh.PATIENCE + 300).require()
        finally:
            self._server.end_processes()
        up, down = json.loads(done.out.splitlines()[-1])
        return up, down


def main(words: Sequence[str]) -> int:
    """Measure, inside the namespaces; prints one line of JSON."""
    asked = json.loads(words[0])
    its = asked["server"]
    paths = {key: Path(its[key]) for key in ("home", "key", "place")}
    numbers = {key: int(its[key]) for key in ("uid", "gid", "port")}
    server = Server(**{**its, **paths, **numbers})
    server.virsh("pool-list")  # its libvirtd runs by now, as it does when Essaim is measured
    names = [f"kcli-{number}" for number in range(asked["count"])]
    try:
        up = _up(server, asked)
    finally:
        began = time.monotonic()
        gone = _kcli(server, "delete", "vm", "--yes", *names)
    down = time.monotonic() - began
    if gone.returncode or server.domains():
        raise CannotRunError(f"kcli delete: {gone.stdout[-300:]}{gone.stderr[-300:]}")
    sys.stdout.write(json.dumps([up, down]) + "\n")
    return 0


def _up(server: Server, asked: dict[str, Any]) -> float:
    # Below the addresses that libvirt gives to what it knows of.
    seed = (
        f"-drive file={asked['seed']},if=none,id=seed,format=raw,readonly=on "
        "-device virtio-blk-pci,drive=seed,addr=0x11"
    )
    settings = {
        "pool": asked["pool"],
        "numcpus": 1,
        "memory": 256,
        "disks": f"[{asked['gib']}]",
        "cloudinit": "false",
        "qemuextra": seed,
    }
    words = [word for key, value in settings.items() for word in ("-P", f"{key}={value}")]
    began = time.monotonic()
    count = ["-c", str(asked["count"])]
    done = _kcli(server, "create", "vm", "-i", asked["image"], *count, *words, "kcli")
    domains = server.domains()
    if done.returncode or list(domains.values()) != ["on"] * asked["count"]:
        raise CannotRunError(f"kcli create: {domains} {done.stdout[-500:]}{done.stderr[-500:]}")
    for name in domains:
        text = server.virsh("dumpxml", name)
        port = int(text.partition("hostfwd=tcp::")[2].partition("-")[0])
        virsh.answer(name, port, Path(asked["key"]))
    return time.monotonic() - began


def _kcli(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    packages = f"PYTHONPATH={server.home / 'kcli'}"
    return server.run("env", packages, "/usr/bin/python3", "-c", _PROGRAM, *words, within=600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
