"""What a machine's first process does before it becomes sshd.

It runs in a child of the keeper that is already process 1 of a new PID namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from essaim.drivers.sandbox import linux, view
from essaim.drivers.sandbox.files import Definition, read
from essaim.drivers.sandbox.netlink import Netlink, hardware_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where the directory with the stack's hosts file appears in a machine.
SHARED = "/run/essaim"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"

#: -o on the command line wins over whatever the image's configuration says.
SSHD = (
    "/usr/sbin/sshd", "-D", "-e",
    "-o", f"HostKey={HOST_KEY}",
    "-o", "PermitRootLogin=prohibit-password",
    "-o", "PasswordAuthentication=no",
    "-o", "KbdInteractiveAuthentication=no",
    "-o", "UsePAM=no",
    "-o", "UseDNS=no",
    # The defaults are made for the internet; here one connection carries a whole fan-out.
    "-o", "MaxSessions=200",
    "-o", "MaxStartups=200",
)  # fmt: skip

_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET
_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_TTY = os.makedev(5, 0)
_CONSOLE_LIMIT = 1 << 20
#: Loading modules, raw ports, the clock, mandatory access control: the computer's, not a machine's.
_DROPPED = (16, 17, 25, 32, 33)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All a machine's first process has to know."""

    definition: Definition
    home: Path  #: the machine's directory
    disk: Path  #: the directory of `upper` and `work`
    hosts: Path
    shared: Mapping[str, Path]  #: folders in common with other machines, and what is behind them
    bridge: int
    gateway: str
    prefix: int
    rootless: bool
    cpus: Sequence[int] = ()  #: the processors it runs on
    cgroups: Sequence[Path] = ()


def cable_name(address: str) -> str:
    """Name a machine's cable on the bridge's side."""
    return f"m{socket.inet_aton(address).hex()}"


def become_machine(order: Order) -> NoReturn:
    """Turn this process into the machine; OSError when the kernel or the image says no."""
    _calm()
    for group in order.cgroups:
        with contextlib.suppress(OSError):  # then it is not limited by this one
            (group / "cgroup.procs").write_text("0")
    if order.cpus:
        with contextlib.suppress(OSError):  # one of them may have been switched off
            os.sched_setaffinity(0, order.cpus)
    outside = Netlink()
    linux.unshare(_NAMESPACES | (linux.CLONE_NEWCGROUP if order.cgroups else 0))
    _plug(order, outside)
    console = _console(order.home / "console.log")
    root = _mount_disk(order)
    _mount_shared(order, root)
    planted = (order.disk / "upper" / HOST_KEY[1:]).exists()
    seed = None if planted else _seed(order)
    os.chdir(root)
    _mount_rest(order)
    linux.pivot_root_here()
    if seed:
        # Not sooner: a link that another machine left in a shared folder would lead outside.
        _plant(order.definition.name, seed)
    else:
        _renew_resolv_conf()
    linux.sethostname(order.definition.name)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(console, 1)
    os.dup2(console, 2)
    for capability in () if order.rootless else _DROPPED:
        linux.drop_capability(capability)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    os.execve(SSHD[0], SSHD, environment)  # noqa: S606 - no shell is the point


def _calm() -> None:
    """Undo what the keeper and Python did to signals and priorities."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.umask(0o022)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")


def _plug(order: Order, outside: Netlink) -> None:
    """Connect the new network namespace to the stack's bridge."""
    # Link-local IPv6 would make every machine chat with every other one at start.
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    address = order.definition.address
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    mac = hardware_address(address)
    outside.cable(cable_name(address), order.bridge, "eth0", namespace, mac)
    outside.close()
    os.close(namespace)
    inside = Netlink()
    inside.up("lo")
    inside.address("eth0", address, order.prefix)
    inside.up("eth0")
    inside.default_route(order.gateway)
    inside.close()


def _console(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _CONSOLE_LIMIT:
            path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _mount_disk(order: Order) -> str:
    """Lay the machine's own files over its image."""
    order.disk.mkdir(mode=0o700, exist_ok=True)
    for name in ("upper", "work", "root"):
        (order.disk / name).mkdir(mode=0o755, exist_ok=True)
    os.chdir(order.disk)
    # Relative names and a file descriptor: a path may hold commas and be long.
    image = os.open(order.definition.rootfs, os.O_PATH | os.O_DIRECTORY)
    options = f"lowerdir=/proc/self/fd/{image},upperdir=upper,workdir=work,index=off"
    if order.rootless:
        options += ",userxattr"
    linux.mount("overlay", "root", "overlay", 0, options)
    return str(order.disk / "root")


def _mount_shared(order: Order, root: str) -> None:
    for path, folder in order.shared.items():
        target = root + path
        # A link in the image would lead out of the machine: it does not live there yet.
        if os.path.realpath(target) != os.path.realpath(root) + path:
            raise OSError(errno.ELOOP, f"{path} cannot be shared: it is a link in the image")
        Path(target).mkdir(parents=True, exist_ok=True)
        linux.mount(str(folder), target, flags=linux.MS_BIND)


def _seed(order: Order) -> dict[str, Any]:
    seed = read(order.home / "seed.json")
    if seed is None:
        raise OSError(errno.EIO, "its seed cannot be read")
    return seed


def _plant(name: str, seed: dict[str, Any]) -> None:
    """Give the machine its identity, once; the host key comes last and marks it done."""
    _put("/etc/hostname", f"{name}\n")
    _put("/etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    for file in ("hosts", "resolv.conf"):  # the keeper writes them, whenever they change
        Path("/etc", file).unlink(missing_ok=True)
        Path("/etc", file).symlink_to(f"{SHARED}/{file}")
    ssh = Path("/root/.ssh")
    ssh.mkdir(mode=0o700, exist_ok=True)
    ssh.chmod(0o700)
    for old in Path("/etc/ssh").glob("ssh_host_*"):
        old.unlink()  # an image may hold keys that others hold too
    keys = "".join(f"{key.strip()}\n" for key in seed["authorized_keys"])
    _put("/root/.ssh/authorized_keys", keys, 0o600)
    _put(HOST_KEY, seed["host_key"].rstrip("\n") + "\n", 0o600)


def _renew_resolv_conf() -> None:
    """Give a machine of an earlier version, which had a file of its own, the one of all."""
    file = Path("/etc/resolv.conf")
    with contextlib.suppress(OSError):  # somebody may have put there what they like
        if not file.is_symlink() and file.read_text() == "# names come from /etc/hosts\n":
            file.unlink()
            file.symlink_to(f"{SHARED}/{file.name}")


def _put(name: str, text: str, mode: int = 0o644) -> None:
    path = Path(name)
    # In a folder that machines share, others may be writing the same.
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.essaim")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(fresh, flags, mode), "w") as file:
        file.write(text)
    fresh.replace(path)


def _mount_rest(order: Order) -> None:
    """Mount everything that is not disk, below the working directory."""
    plain = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "proc", "proc", plain | linux.MS_NOEXEC)
    _mount_sys(order)
    view.cover(order.home, order.cpus, order.definition.memory)
    linux.mount("tmpfs", "tmp", "tmpfs", plain, f"mode=1777{_half(order)}")
    linux.mount("tmpfs", "run", "tmpfs", plain, f"mode=0755{_half(order)}")
    for name, mode in (("sshd", 0o755), ("lock", 0o1777), (SHARED[5:], 0o755)):
        Path("run", name).mkdir()
        Path("run", name).chmod(mode)
    linux.bind(str(order.hosts), SHARED[1:], readonly=True)
    _mount_dev(order)
    if not order.rootless:
        # As root these would reach the computer itself; only the network's settings are our own.
        linux.bind("proc/sys/net", "proc/sys/net")
        linux.mount("proc/sys", "proc/sys", flags=linux.MS_BIND | linux.MS_REC)
        kept = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | kept
        linux.mount("proc/sys", "proc/sys", flags=flags)
        with contextlib.suppress(FileNotFoundError):  # not every kernel has it
            linux.bind("proc/sysrq-trigger", "proc/sysrq-trigger", readonly=True)


def _mount_sys(order: Order) -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    # Where parts of the computer's own /sys are hidden the kernel refuses; most do without.
    with contextlib.suppress(PermissionError):
        linux.mount("sysfs", "sys", "sysfs", flags | linux.MS_RDONLY)
    if not order.cgroups:
        return
    if "cgroup.controllers" in (entry.name for entry in os.scandir(order.cgroups[0])):
        linux.mount("cgroup2", "sys/fs/cgroup", "cgroup2", flags)
        return
    linux.mount("tmpfs", "sys/fs/cgroup", "tmpfs", flags, "mode=0755")
    for group in order.cgroups:
        controller = group.parts[4]  # /sys/fs/cgroup/CONTROLLER/…
        Path("sys/fs/cgroup", controller).mkdir()
        linux.mount("cgroup", f"sys/fs/cgroup/{controller}", "cgroup", flags, controller)


def _half(order: Order) -> str:
    """Bound what is kept in memory to half of the machine's, as the kernel does for a computer."""
    memory = order.definition.memory
    return f",size={memory << 19}" if memory else ""


def _mount_dev(order: Order) -> None:
    linux.mount("tmpfs", "dev", "tmpfs", linux.MS_NOSUID, "mode=0755")
    for name, minor in _DEVICES.items():
        _device(name, os.makedev(1, minor))
    _device("tty", _TTY)
    for name in ("pts", "shm"):
        Path("dev", name).mkdir()
    quiet = linux.MS_NOSUID | linux.MS_NOEXEC
    linux.mount("devpts", "dev/pts", "devpts", quiet, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    shared = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", "dev/shm", "tmpfs", shared, f"mode=1777{_half(order)}")
    for link, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        Path("dev", link).symlink_to(target)


def _device(name: str, number: int) -> None:
    path = Path("dev", name)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.chmod(0o666)
    except PermissionError:
        # Only real root may make devices; anyone may show one that is there.
        path.touch()
        linux.bind(f"/dev/{name}", str(path))
