"""What a machine's first process does before it becomes sshd.

It runs in a child of the keeper that is already process 1 of a new PID namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from essaim.drivers.sandbox import disks, handover, idmap, linux, mounts, view
from essaim.drivers.sandbox.files import Definition, read
from essaim.drivers.sandbox.netlink import Netlink, cable_name, hardware_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

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
#: Loading modules, raw ports, the clock, mandatory access control: the computer's, not a machine's.
_DROPPED = (16, 17, 25, 32, 33)
#: What root of a machine without a user namespace must not have either, or it is the computer's, by
#: the kernel's numbers: reading any file by its handle, accounting, mounts and what else belongs to
#: administration, booting, limits, terminals, devices, auditing, the kernel's log, sleep, tracing,
#: BPF, checkpoints.
_DROPPED_ALONE = (2, 20, 21, 22, 24, 26, 27, 30, 34, 35, 36, 37, 38, 39, 40)


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
    first_id: int = 0  #: what its root is on the computer, where it has a user namespace of its own
    cpus: Sequence[int] = ()  #: the processors it runs on
    cgroups: Sequence[Path] = ()


def become_machine(order: Order, line: socket.socket | None = None) -> NoReturn:
    """Turn this process into the machine; OSError when the kernel or the image says no.

    `line` leads to the keeper where the machine has a user namespace of its own.
    """
    _calm()
    for group in order.cgroups:
        with contextlib.suppress(OSError):  # then it is not limited by this one
            (group / "cgroup.procs").write_text("0")
    if order.cpus:
        with contextlib.suppress(OSError):  # one of them may have been switched off
            os.sched_setaffinity(0, order.cpus)
    console, seed = _move_in(order, line) if line else _move_in_alone(order)
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
    for capability in () if order.rootless else (*_DROPPED, *(() if line else _DROPPED_ALONE)):
        linux.drop_capability(capability)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    os.execve(SSHD[0], SSHD, environment)  # noqa: S606 - no shell is the point


def _move_in_alone(order: Order) -> tuple[int, dict[str, Any] | None]:
    """Make everything below a new root, the working directory; the console, and the seed if new."""
    outside = Netlink()
    linux.unshare(_NAMESPACES | (linux.CLONE_NEWCGROUP if order.cgroups else 0))
    _plug(order, outside)
    console = disks.open_console(order.home / "console.log")
    root = _mount_disk(order)
    _mount_shared(order, root)
    planted = (order.disk / "upper" / HOST_KEY[1:]).exists()
    seed = None if planted else _seed(order)
    os.chdir(root)
    mounts.mount_rest(order)
    linux.bind(str(order.hosts), mounts.SHARED[1:], readonly=True)
    view.cover(order.home, order.cpus, order.definition.memory)
    if not order.rootless:
        mounts.protect_proc()
    return console, seed


def _move_in(order: Order, line: socket.socket) -> tuple[int, dict[str, Any] | None]:
    """Do the same in a user namespace, with what the keeper hands over."""
    handed = handover.take(line)
    idmap.become_root()
    linux.unshare(_NAMESPACES | (linux.CLONE_NEWCGROUP if order.cgroups else 0))
    _quieten_ipv6()
    line.sendall(b"?")  # for the cable
    idmap.lay_out(handed.image, handed.disk)
    planted = Path("disk/upper" + HOST_KEY).exists()
    os.chdir("root")
    for path, tree in handed.shared.items():
        linux.attach(tree, _shared_target(idmap.SCRATCH + "/root", path))
    mounts.mount_rest(order)
    linux.attach(handed.hosts, mounts.SHARED[1:])
    for place, tree in handed.covers.items():
        if Path(place).exists():
            linux.attach(tree, place)
    if not line.recv(1):
        raise ConnectionResetError("the keeper has not plugged the cable in")
    _set_up_network(order)
    return handed.console, None if planted else handed.seed or _seed(order)


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
    _quieten_ipv6()
    address = order.definition.address
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    mac = hardware_address(address)
    outside.cable(cable_name(address), order.bridge, "eth0", namespace, mac)
    outside.close()
    os.close(namespace)
    _set_up_network(order)


def _quieten_ipv6() -> None:
    """Keep link-local IPv6 from making every machine chat with every other one at start."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")


def _set_up_network(order: Order) -> None:
    inside = Netlink()
    inside.up("lo")
    inside.address("eth0", order.definition.address, order.prefix)
    inside.up("eth0")
    inside.default_route(order.gateway)
    inside.close()


def _mount_disk(order: Order) -> str:
    """Lay the machine's own files over its image."""
    disks.prepare_layers(order.disk, user_xattrs=order.rootless)
    os.chdir(order.disk)
    # Relative names and a file descriptor: a path may hold commas and be long.
    image = os.open(order.definition.rootfs, os.O_PATH | os.O_DIRECTORY)
    options = f"lowerdir=/proc/self/fd/{image},upperdir=upper,workdir=work,index=off"
    if order.rootless:
        options += ",userxattr"
    linux.mount("overlay", "root", "overlay", linux.MS_NODEV, options)
    return str(order.disk / "root")


def _mount_shared(order: Order, root: str) -> None:
    for path, folder in order.shared.items():
        target = _shared_target(root, path)
        linux.mount(str(folder), target, flags=linux.MS_BIND)
        kept = os.statvfs(target).f_flag & (linux.MS_NOSUID | linux.MS_NOEXEC)
        flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_NODEV | kept
        linux.mount(str(folder), target, flags=flags)


def _shared_target(root: str, path: str) -> str:
    target = root + path
    # A link in the image would lead out of the machine: it does not live there yet.
    if os.path.realpath(target) != os.path.realpath(root) + path:
        raise OSError(errno.ELOOP, f"{path} cannot be shared: it is a link in the image")
    Path(target).mkdir(parents=True, exist_ok=True)
    return target


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
        Path("/etc", file).symlink_to(f"{mounts.SHARED}/{file}")
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
            file.symlink_to(f"{mounts.SHARED}/{file.name}")


def _put(name: str, text: str, mode: int = 0o644) -> None:
    path = Path(name)
    # In a folder that machines share, others may be writing the same.
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.essaim")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(fresh, flags, mode), "w") as file:
        file.write(text)
    fresh.replace(path)
