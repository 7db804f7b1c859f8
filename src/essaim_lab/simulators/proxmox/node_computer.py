"""The computer that plays all nodes of the cluster: a shell over SSH, and room for containers.

It is this computer, in namespaces of its own (mount, network, process, host name): /etc, /var/lib,
/run and /mnt can be written there and stay as they are outside.  /etc/pve is kept in the folder
`pve`, and /mnt/pve/homes, where a node would mount the file server's export, in `homes`.  All nodes
are one computer here, so a file that is put on one of them is on all.  Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from essaim.drivers.sandbox import linux
from essaim.model.errors import SetupError, TransientError

#: The bridge's address, and how much of a machine's is the network's.
ADDRESS, PREFIX = "10.0.0.1", 8
#: Where the computer itself sees the folder that is its disk.
DISK = Path("/mnt/essaim")
_NEEDED = {"lxc-start": "lxc", "newuidmap": "uidmap", "sshd": "openssh-server", "ip": "iproute2"}
_WITHIN = 60.0
# The first process of the namespaces.  $1: sshd, which it becomes.  The working directory is the
# disk: it is found again even where its path is hidden by what is mounted here.
_BOOT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/essaim /mnt/cgroup /mnt/pve
mount --rbind . /mnt/essaim
mount --rbind /sys/fs/cgroup /mnt/cgroup
mount -t sysfs sysfs /sys
mount --rbind /mnt/cgroup /sys/fs/cgroup
umount -l /mnt/cgroup; rmdir /mnt/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
for part in etc var/lib; do
  own=/run/node/$part
  mkdir -p "$own/upper" "$own/work"
  mount -t overlay -o "lowerdir=/$part,upperdir=$own/upper,workdir=$own/work" overlay "/$part"
done
mkdir -p /run/sshd /run/lock/lxc /etc/pve /mnt/pve/homes /var/lib/essaim
mount --bind /mnt/essaim/lock /run/lock/lxc
mount --bind /mnt/essaim/pve /etc/pve
mount --bind /mnt/essaim/homes /mnt/pve/homes
echo root:100000:65536 >/etc/subuid
echo root:100000:65536 >/etc/subgid
hostname pve
ip link set lo up
ip link add vmbr0 type bridge
ip address add ADDRESS dev vmbr0
ip link set vmbr0 up
cd /
exec "$1" -D -e -f /mnt/essaim/sshd_config
""".replace("ADDRESS", f"{ADDRESS}/{PREFIX}")
_SSHD = """\
ListenAddress 127.0.0.1:22
HostKey /mnt/essaim/host_key
AuthorizedKeysFile /mnt/essaim/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
StrictModes no
MaxSessions 200
MaxStartups 200
Subsystem sftp internal-sftp
SetEnv PATH=/mnt/essaim/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
#: As much of Proxmox VE's own command as is of use here.
_PCT = """\
#!/bin/sh
case ${1-} in
exec)
  id=$2; shift 2
  if [ "${1-}" = -- ]; then shift; fi
  exec lxc-attach -n "$id" --clear-env \
    -v PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin -- "$@" ;;
enter) exec lxc-attach -n "$2" --clear-env -v TERM="${TERM-linux}" ;;
list) exec lxc-ls --running -1 ;;
config) exec cat "/etc/pve/lxc/$2.conf" ;;
*) echo "pct ${1-}: not simulated; there are exec, enter, list, config" >&2; exit 255 ;;
esac
"""


class NodeComputer:
    """Open from the start until `close`; ends with this process, however that ends."""

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        _check()
        self.folder = folder
        self.host_key = ""  #: the public one
        self._pid = 0
        for name in ("pve/lxc", "lock", "homes", "bin"):
            (folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        (folder / "bin" / "pct").write_text(_PCT)
        (folder / "bin" / "pct").chmod(0o755)
        folder.chmod(0o755)
        self._write_keys(keys)
        self._process = self._start()

    def _write_keys(self, keys: Sequence[str]) -> None:
        key = ed25519.Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        file = self.folder / "host_key"
        file.touch(mode=0o600)
        file.write_bytes(private)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        self.host_key = public.decode()
        (self.folder / "authorized_keys").write_text("".join(f"{line}\n" for line in keys))
        (self.folder / "sshd_config").write_text(_SSHD)

    def _start(self) -> subprocess.Popen[bytes]:
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or "sshd"
        spaces = ["--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces]
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--", "sh", "-c", _BOOT, "node", sshd],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _WITHIN
        while not self._is_up(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                said = (self.folder / "log").read_text(errors="replace").strip()[-500:]
                raise SetupError(f"the computer that plays the nodes did not start: {said}")
            time.sleep(0.02)
        return process

    def _is_up(self, pid: int) -> bool:
        """Whether its sshd listens; takes note of its first process."""
        with contextlib.suppress(OSError, ValueError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            self._pid = int(children[0]) if children else 0
        if not self._pid:
            return False
        with contextlib.suppress(OSError, TransientError):
            self.dial("127.0.0.1", 22).close()
            return True
        return False

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command there, as root."""
        spaces = ["nsenter", "-t", str(self._pid), "-m", "-n", "-p", "-u", "--wd=/", "--"]
        return subprocess.run(
            [*spaces, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    def dial(self, address: str, port: int) -> socket.socket:
        """Return a socket connected from there."""
        found: list[socket.socket | OSError] = []

        def work() -> None:
            # A thread has a network of its own if it wants to; the socket keeps it.
            try:
                space = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY)
                try:
                    linux.setns(space, linux.CLONE_NEWNET)
                finally:
                    os.close(space)
                link = socket.create_connection((address, port), timeout=10)
                link.settimeout(None)
                found.append(link)
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        if isinstance(found[0], OSError):
            raise TransientError(f"{address}:{port} does not answer") from found[0]
        return found[0]

    def close(self) -> None:
        """End it and all that runs in it, and remove its disk."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _check() -> None:
    if os.geteuid() != 0:
        raise SetupError("containers of LXC need root", hint="without --lxc a plain user will do")
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    missing = sorted({p for tool, p in _NEEDED.items() if shutil.which(tool, path=path) is None})
    if missing:
        names = " ".join(missing)
        raise SetupError(f"not installed: {names}", hint=f"apt-get install {names}")
