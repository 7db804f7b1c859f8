"""Containers of the simulated cluster that are real ones: LXC, with user namespaces and hooks.

A container whose file in /etc/pve/lxc has raw lines (`lxc.idmap`, `lxc.mount.entry`, `lxc.hook.…`)
is started by LXC itself, from a copy of the image whose owners are shifted as its id map says.
Not honoured: limits of cores and memory, disks besides the first, `hookscript`, snapshots.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from essaim.model.errors import RejectedError
from essaim_lab.simulators.proxmox.lxc_config import (
    USUAL_ROOT,
    is_for_lxc,
    lxc_text,
    pve_text,
    raw_lines,
    shift,
)
from essaim_lab.simulators.proxmox.node_computer import ADDRESS, DISK, PREFIX, NodeComputer
from essaim_lab.simulators.proxmox.state import Guest

_SAID = re.compile(r"produced output: (.*)")
_WRONG = re.compile(r" ERROR +\S+ - \S+ - (.*)")
_HOST_KEY = "etc/ssh/ssh_host_ed25519_key.pub"


class Containers:
    """The containers of one computer that plays the nodes."""

    def __init__(self, node: NodeComputer, rootfs: Path) -> None:
        self._node, self._rootfs = node, rootfs

    # What a person or a control plane on the node sees

    def write(self, guest: Guest) -> None:
        """Write its file as the API's settings are now; raw lines in it stay."""
        path = self._file(guest.vmid)
        with self._locked(guest.vmid):
            fresh = path.with_suffix(".tmp")
            fresh.write_text(pve_text(guest.conf, _text(path)), encoding="utf-8")
            fresh.replace(path)

    def forget(self, vmid: int) -> None:
        """Remove its file."""
        self._file(vmid).unlink(missing_ok=True)

    def wants(self, guest: Guest) -> bool:
        """Whether it is one for LXC: a container with raw lines, or one that was."""
        known = (self._place(guest.vmid) / "disk").exists()
        return guest.kind == "lxc" and (known or is_for_lxc(_text(self._file(guest.vmid))))

    # What becomes of it

    def prepare(self) -> None:
        """Have the image as unprivileged containers usually need it, before one is started."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):  # a start says why
            self._image(USUAL_ROOT)

    def start(self, guest: Guest, address: str) -> str:
        """Start it; returns its public host key.  RejectedError says what its hooks said."""
        raw = raw_lines(_text(self._file(guest.vmid)))
        disk = self._mounted(guest, shift(guest.conf, raw), address)
        place = self._place(guest.vmid)
        text = lxc_text(
            guest.conf,
            raw,
            rootfs=str(self._seen(disk)),
            address=f"{address}/{PREFIX}",
            gateway=ADDRESS,
        )
        (place / "config").write_text(text, encoding="utf-8")
        log = place / "log"
        log.unlink(missing_ok=True)
        done = self._node.run(
            "lxc-start", "-n", str(guest.vmid), "-P", "/var/lib/lxc", "-d",
            "-f", str(self._seen(place / "config")), "-l", "DEBUG", "-o", str(self._seen(log)),
        )  # fmt: skip
        if done.returncode:
            raise RejectedError(f"startup for container '{guest.vmid}' failed: {_why(log, done)}")
        key = self._node.run("cat", str(self._seen(disk / _HOST_KEY)))
        return key.stdout.strip()

    def stop(self, vmid: int) -> None:
        """Take its power away."""
        self._node.run("lxc-stop", "-n", str(vmid), "-P", "/var/lib/lxc", "-k")

    def destroy(self, vmid: int) -> None:
        """Remove it and its disk."""
        self.stop(vmid)
        self._node.run("umount", "-l", str(self._seen(self._place(vmid) / "root")))
        shutil.rmtree(self._place(vmid), ignore_errors=True)

    def dial(self, address: str) -> socket.socket:
        """Return a socket connected to its port 22."""
        return self._node.dial(address, 22)

    def _mounted(self, guest: Guest, root: int, address: str) -> Path:
        """Its root file system: the image, and over it what is its own."""
        place = self._place(guest.vmid)
        target = place / "root"
        if self._node.run("mountpoint", "-q", str(self._seen(target))).returncode == 0:
            return target
        image = self._image(root)
        for name in ("disk", "work", "root"):
            (place / name).mkdir(parents=True, exist_ok=True)
        os.chown(place / "disk", root, root)
        options = f"lowerdir={self._seen(image)},upperdir={self._seen(place / 'disk')}"
        options += f",workdir={self._seen(place / 'work')}"
        words = ["mount", "-t", "overlay", "-o", options, "overlay", str(self._seen(target))]
        done = self._node.run(*words)
        if done.returncode:
            raise RejectedError(f"container {guest.vmid}: {done.stderr.strip()}")
        self._identify(guest, root, address)
        return target

    def _identify(self, guest: Guest, root: int, address: str) -> None:
        """Name it, as Proxmox VE does before a start."""
        etc = self._place(guest.vmid) / "disk" / "etc"
        etc.mkdir(mode=0o755, exist_ok=True)
        hosts = f"127.0.0.1 localhost\n{address} {guest.name}\n"
        for name, text in (("hostname", f"{guest.name}\n"), ("hosts", hosts), ("resolv.conf", "")):
            (etc / name).write_text(text, encoding="utf-8")
            os.chown(etc / name, root, root)
        os.chown(etc, root, root)

    def _image(self, root: int) -> Path:
        """A copy of the image in which 0 is `root`; the image itself for a privileged container."""
        ready = self._node.folder / "images" / str(root)
        if ready.exists():
            return ready
        ready.parent.mkdir(exist_ok=True)
        fresh = ready.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        subprocess.run(["cp", "-a", "--", str(self._rootfs), str(fresh)], check=True)
        if root:
            _shift_owners(fresh, root)
        fresh.rename(ready)
        return ready

    def _file(self, vmid: int) -> Path:
        return self._node.folder / "pve" / "lxc" / f"{vmid}.conf"

    def _place(self, vmid: int) -> Path:
        return self._node.folder / "containers" / str(vmid)

    def _seen(self, path: Path) -> Path:
        """Where the node sees a file of its disk."""
        return DISK / path.relative_to(self._node.folder)

    @contextlib.contextmanager
    def _locked(self, vmid: int) -> Iterator[None]:
        """Hold the lock that whoever changes the file by hand takes too."""
        with (self._node.folder / "lock" / f"pve-config-{vmid}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _shift_owners(folder: Path, root: int) -> None:
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        os.chown(path, facts.st_uid + root, facts.st_gid + root, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(facts.st_mode & 0o7777)  # a change of owner takes setuid away


def _why(log: Path, done: subprocess.CompletedProcess[str]) -> str:
    """What the hooks said, or else LXC."""
    text = log.read_text(errors="replace") if log.exists() else ""
    said = _SAID.findall(text) or _WRONG.findall(text)[:1] or [done.stderr.strip()[-300:]]
    return "; ".join(said)
