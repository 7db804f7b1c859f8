"""A KVM server for somebody without privileges: a plain account, its own sshd, libvirt's session.

Root makes it on this computer: the account is new, sshd listens on the loopback alone with keys of
its own, and libvirtd is whatever a session starts by itself.  Account, processes and files are gone
afterwards; Debian's packages stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import essaim
from essaim.images import disks
from essaim_lab import computer
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(essaim.__file__).parents[2]

#: What a server needs, by a file that tells whether it is there.
SERVER = {
    "/usr/bin/qemu-system-x86_64": "qemu-system-x86",
    "/usr/bin/qemu-img": "qemu-utils",
    "/usr/sbin/libvirtd": "libvirt-daemon",
    "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so": (
        "libvirt-daemon-driver-qemu"
    ),
    "/usr/bin/virsh": "libvirt-clients",
    "/usr/sbin/sshd": "openssh-server",
    "/usr/bin/nc.openbsd": "netcat-openbsd",
}
#: What its images are made with, and the connection to it is built with.
HERE = {
    **disks.TOOLS,
    str(disks.GRUB / "boot.img"): "grub-pc-bin",
    "mmdebstrap": "mmdebstrap",
    "gcc": "gcc",
    "pkg-config": "pkg-config",
    "/usr/include/libvirt/libvirt.h": "libvirt-dev",
}
PATIENCE = 120.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """A KVM server as one account of it sees it, and what root knows of that account."""

    user: str
    uid: int
    gid: int
    home: Path
    port: int  #: of its sshd, on 127.0.0.1
    host_key: str  #: public, `ssh-ed25519 AAAA…`
    key: Path  #: private, for logging in
    place: Path  #: root's files of this server

    @property
    def uri(self) -> str:
        """How libvirt reaches it from elsewhere."""
        return f"qemu+ssh://{self.user}@127.0.0.1:{self.port}/session"

    def site_yaml(self, **more: str) -> str:
        """Write it as a lab's site file says it."""
        said = {
            "driver": "libvirt",
            "uri": self.uri,
            "host_key": self.host_key,
            "key": str(self.key),
            **more,
        }
        return "".join(f"{key}: {value}\n" for key, value in said.items())

    def known_hosts(self) -> Path:
        """Give a file that pins its key, for OpenSSH."""
        path = self.place / "known_hosts"
        path.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")
        return path

    def command(self, *words: str) -> list[str]:
        """Give the words that run a command there as its account, without going through sshd."""
        become = ("setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups")
        return [*become, "--inh-caps=-all", *words]

    @property
    def environ(self) -> dict[str, str]:
        """What a login through sshd gives: above all no XDG_RUNTIME_DIR, as nobody made one."""
        return {
            "HOME": str(self.home),
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/sh",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *words: str, within: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a command there as its account."""
        return subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self.environ,
            timeout=within,
            check=False,
        )

    def virsh(self, *words: str) -> str:
        """Give what virsh prints there; CannotRunError with its last words when it fails."""
        done = self.run("virsh", "--quiet", "--connect", "qemu:///session", *words)
        if done.returncode:
            raise CannotRunError(f"virsh {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def domains(self) -> dict[str, str]:
        """Give every domain there, `on` or `off`."""
        running = set(self.virsh("list", "--name").split())
        every = self.virsh("list", "--all", "--name").split()
        return {name: "on" if name in running else "off" for name in sorted(every)}

    def volumes(self) -> dict[str, set[str]]:
        """Give every volume of every pool there, files that libvirt has not noticed yet too."""
        found = {}
        for pool in self.virsh("pool-list", "--all", "--name").split():
            with contextlib.suppress(CannotRunError):  # one that is not started
                self.virsh("pool-refresh", pool)
            try:
                lines = self.virsh("vol-list", pool).splitlines()
            except CannotRunError:
                lines = []
            found[pool] = {line.split()[0] for line in lines if line.strip()}
        return found

    def files(self) -> set[str]:
        """Give every file of its home, as paths below it."""
        every = (path for path in self.home.rglob("*") if not path.is_dir())
        return {str(path.relative_to(self.home)) for path in every}

    def processes(self) -> dict[int, str]:
        """Give the account's processes with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if _whose(entry) == self.uid:
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def end_processes(self) -> None:
        """End all its processes, and wait until they are gone."""
        deadline = time.monotonic() + PATIENCE
        while pids := list(self.processes()):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise CannotRunError(f"processes of {self.user} do not end: {pids}")
            time.sleep(0.05)


@contextmanager
def libvirt_server() -> Iterator[Server]:
    """Make a server and give it; whatever ran or lay there is gone afterwards."""
    if os.geteuid() != 0:
        raise CannotRunError("only root can make an account: run this as root")
    need_packages()
    name = f"essaim-kvm-{secrets.token_hex(4)}"
    # `*`: no password, yet not locked, as sshd without PAM lets nobody in who is.
    add = ["useradd", "--create-home", "--shell", "/bin/sh", "--password", "*", name]
    subprocess.run(add, check=True)
    place = Path(tempfile.mkdtemp(prefix="essaim-kvm-"))
    place.chmod(0o711)  # the account may read what it is told the name of
    try:
        who = pwd.getpwnam(name)
        home = Path(who.pw_dir)
        key, host = place / "key", place / "host_key"
        for path in (key, host):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
            subprocess.run(make, check=True)
        _let_in(home, who.pw_uid, who.pw_gid, key.with_suffix(".pub").read_text())
        server = Server(
            user=name,
            uid=who.pw_uid,
            gid=who.pw_gid,
            home=home,
            port=computer.free_port(),
            host_key=" ".join((place / "host_key.pub").read_text().split()[:2]),
            key=key,
            place=place,
        )
        try:
            with _sshd(server):
                yield server
        finally:
            server.end_processes()
    finally:
        subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)


def _let_in(home: Path, uid: int, gid: int, public: str) -> None:
    folder = home / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "authorized_keys").write_text(public)
    for path in (folder, folder / "authorized_keys"):
        os.chown(path, uid, gid)


@contextmanager
def _sshd(server: Server) -> Iterator[None]:
    """Run an sshd on the loopback that lets one account in, with Debian's limits."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    config = server.place / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{server.port}\n"
        f"HostKey {server.place / 'host_key'}\n"
        f"PidFile {server.place / 'sshd.pid'}\n"
        f"AllowUsers {server.user}\n"
        "AuthenticationMethods publickey\nUsePAM no\nPrintMotd no\n"
        "Subsystem sftp /usr/lib/openssh/sftp-server\n"
    )
    with (server.place / "sshd.log").open("ab") as log:
        # By its full path, or it refuses to start.
        words = ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await_banner(server, process)
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _await_banner(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 5):
            return
        time.sleep(0.05)
    said = (server.place / "sshd.log").read_text(errors="replace")
    raise CannotRunError(f"sshd did not start: {said.strip()[-300:]}")


def need_packages() -> None:
    """Install what is missing, of Debian and of Python; one of several processes does it."""
    with (CHECKOUT / ".venv" / "kvm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        computer.need(SERVER | HERE)
        lacking = [name for name in ("libvirt", "pycdlib") if not importlib.util.find_spec(name)]
        if lacking:
            words = [str(CHECKOUT / "essaim"), "--prepare", "libvirt"]
            subprocess.run(words, check=True, stdout=sys.stderr)
            importlib.invalidate_caches()


def _whose(entry: Path) -> int | None:
    """Who a process belongs to; None when it has ended and only its exit code is left."""
    text = (entry / "status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in text)
    return None if said["State"].split()[0] == "Z" else int(said["Uid"].split()[0])
