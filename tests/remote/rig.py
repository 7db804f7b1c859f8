"""Real SSH servers for the tests: each in its own mount, PID and UTS namespace over an overlay.

What a role writes lands in the overlay's upper directory on a private tmpfs, never on the host.
Only the network is shared: each server listens on a loopback port of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.model.names import MachineName
from essaim.remote.ssh import Target
from essaim_lab import computer
from essaim_lab.computer import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from essaim.remote.keyring import Keyring

PACKAGES = "openssh-server,procps,python3,sudo"  # Ansible needs more than python3-minimal
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "essaim-tests"

INIT = r"""
set -eu
cd "$1"
mount --make-rprivate /
mount -t tmpfs tmpfs .
cd "$1" # into the new mount, not what it covers
mkdir up work root
mount -t overlay overlay -o "lowerdir=$2,upperdir=up,workdir=work" root
cd root
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs dev
for node in null zero random urandom tty; do
  : >dev/$node
  mount --bind /dev/$node dev/$node
done
mkdir -p dev/pts run/sshd root/.ssh
hostname "$3"
umask 077
printf '%s\n' "$4" >root/.ssh/authorized_keys
cat >etc/ssh/host_key
exec chroot . sh -c '
  useradd -m -p "*" -s /bin/sh student
  mkdir -p /home/student/.ssh
  cp /root/.ssh/authorized_keys /home/student/.ssh/
  chown -R student: /home/student/.ssh
  echo "student ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/student
  : >/run/prepared
  # The first process only reaps, as an init does: sshd can then be ended and started again.
  trap : TERM
  while :; do sleep 3600 & wait; done
'
"""


def rootfs() -> Path:
    """Build the small Debian all servers share, once for each list of packages."""
    name = hashlib.sha256(PACKAGES.encode()).hexdigest()[:12]
    path = CACHE / f"rootfs-{name}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            computer.need({"mmdebstrap": "mmdebstrap"})
            draft = path.with_suffix(".new")
            shutil.rmtree(draft, ignore_errors=True)
            subprocess.run(
                ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}",
                 "bookworm", str(draft), *map(str, _sources())],
                check=True,
            )  # fmt: skip
            draft.rename(path)
    return path


def _sources() -> list[Path]:
    """Where this computer gets its packages from, so that mmdebstrap asks nobody else."""
    places = [Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d/debian.sources")]
    return [path for path in places if path.exists()]


@dataclass
class Server:
    """One machine-like thing that SSH reaches."""

    name: MachineName
    keyring: Keyring
    box: subprocess.Popen[bytes]
    inside: int
    port: int

    @property
    def target(self) -> Target:
        return Target(
            name=self.name,
            address="127.0.0.1",
            port=self.port,
            host_key=self.keyring.host_public_key(self.name),
        )

    def ssh(self, user: str = "root") -> list[str]:
        """The ssh command that opens a shell there."""
        known = self.keyring.known_hosts_file([self.name])
        options = {
            "IdentityFile": self.keyring.user_key(),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": known,
            "HostKeyAlias": f"{self.name.stack}.{self.name.machine}",
            "StrictHostKeyChecking": "yes",
            "Port": self.port,
        }
        given = [word for key in options for word in ("-o", f"{key}={options[key]}")]
        return ["ssh", "-F", "none", *given, f"{user}@127.0.0.1"]

    def path(self, inside: str) -> Path:
        """A file of the machine, seen from here."""
        return Path(f"/proc/{self.inside}/root") / inside.lstrip("/")

    def enter(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run something there without SSH."""
        return subprocess.run(
            ["nsenter", "-t", str(self.inside), "-m", "-p", "-u", "-r", "-w", *command],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def start_sshd(self, *options: str, subsystem: str = "sftp") -> None:
        done = self.enter(
            "/usr/sbin/sshd", "-f", "/dev/null", "-h", "/etc/ssh/host_key",
            "-o", "PidFile=/run/sshd.pid", "-o", f"ListenAddress=127.0.0.1:{self.port}",
            "-o", "UsePAM=no", "-o", "PermitRootLogin=prohibit-password",
            "-o", f"Subsystem={subsystem} internal-sftp", *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        until(lambda: self.path("/run/sshd.pid").exists())

    def stop_sshd(self) -> None:
        """End the listener and every connection, as a restart of the machine would."""
        self.path("/run/sshd.pid").unlink(missing_ok=True)
        self.enter("sh", "-c", "for p in $(pgrep -x sshd); do kill -9 $p; done")
        until(lambda: not self.enter("pgrep", "-x", "sshd").stdout.strip())

    def processes(self, pattern: str) -> list[str]:
        """Process ids of the machine whose command line matches."""
        return self.enter("pgrep", "-f", pattern).stdout.split()


def until(condition, within: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@contextlib.contextmanager
def server(name: str, keyring: Keyring, scratch: Path) -> Iterator[Server]:
    """Start a machine-like thing with a running sshd, and end it with everything in it."""
    machine = MachineName("lab", name)
    place = scratch / f"box-{name}"
    place.mkdir()
    box = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child",
         "sh", "-c", INIT, "init", str(place), str(rootfs()), name, keyring.user_public_key()],
        stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert box.stdin is not None
        box.stdin.write(keyring.host_key(machine).encode())
        box.stdin.close()
        children = Path(f"/proc/{box.pid}/task/{box.pid}/children")
        until(lambda: bool(children.read_text().split()))
        one = Server(machine, keyring, box, int(children.read_text().split()[0]), free_port())
        until(lambda: one.path("/run/prepared").exists())
        one.start_sshd()
        yield one
    finally:
        box.send_signal(signal.SIGKILL)
        box.wait()
