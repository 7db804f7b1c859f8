"""What a keeper does for a machine in a user namespace, which may do little outside of it itself.

The keeper maps its ids, gives it mounts that are nowhere yet and files it could not open, and plugs
its cable in once it has a network namespace.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox import cgroups, disks, idmap, linux, streams, view
from essaim.drivers.sandbox.files import read
from essaim.drivers.sandbox.loop import READ, Ready
from essaim.drivers.sandbox.netlink import Netlink, cable_name, hardware_address

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from essaim.drivers.sandbox.boot import Order

_MESSAGE_LIMIT, _MOST_FILES = 1 << 20, 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What a machine was given; mounts as `linux.clone_mount` returns them."""

    image: int
    disk: int
    hosts: int
    console: int
    covers: Mapping[str, int]  #: by the place they cover
    shared: Mapping[str, int]  #: by the path they appear at
    seed: dict[str, Any] | None


def see_boot(
    line: socket.socket | None, order: Order, pid: int, report: int, seconds: float
) -> Generator[Any, Any, str | None]:
    """Equip a new machine, where `line` leads to one that needs it, and read its report.

    Nothing once it runs, `ERRNO TEXT` when it failed, None when that takes too long.
    """
    failed = (yield from _equip(line, order, pid, seconds)) if line else ""
    said: str | None = yield from streams.read_all(report, seconds)
    # Of two who hang up, the one whose error has a number knows why.
    return failed if failed and (not said or said.startswith("0 ")) else said


def _equip(line: socket.socket, order: Order, pid: int, seconds: float) -> Generator[Any, Any, str]:
    """Do for a new machine in a user namespace what it may not do itself; say what went wrong."""
    try:
        with line:
            _give(line, order, pid)
            # When it hangs up it has failed, and its report says why.
            if (yield Ready(line.fileno(), READ, seconds)) and line.recv(1):
                _plug(line, order, pid)
    except OSError as error:
        return f"{error.errno} {error.strerror}"
    return ""


def _give(line: socket.socket, order: Order, pid: int) -> None:
    """Map the machine's ids and hand it what it needs."""
    idmap.write_maps(pid, order.first_id)
    with suppress(OSError):  # only who may lower it can also keep others from doing so
        Path(f"/proc/{pid}/oom_score_adj").write_text("0")
    disks.prepare_layers(order.disk, user_xattrs=True)
    users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    fds = [users]
    try:
        # Shown as they are, so that the machine's root may not write what it could mount anew.
        plain = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY
        covers = view.write_covers(order.home, order.cpus, order.definition.memory)
        fds += [
            linux.clone_mount(order.definition.rootfs, users=users),
            linux.clone_mount(str(order.disk), users=users),
            linux.clone_mount(str(order.hosts), flags=plain),
            disks.open_console(order.home / "console.log"),
        ]
        fds += [linux.clone_mount(str(path), flags=plain) for path in covers.values()]
        nodev = linux.MS_NODEV
        for folder in order.shared.values():
            fds.append(linux.clone_mount(str(folder), flags=nodev, users=users))
        seed = read(order.home / "seed.json")
        message = {"seed": seed, "covers": list(covers), "shared": list(order.shared)}
        socket.send_fds(line, [json.dumps(message).encode()], fds[1:])
    finally:
        for fd in fds:
            os.close(fd)


def take(line: socket.socket) -> Handed:
    """Receive what the keeper hands over."""
    data, fds, _, _ = socket.recv_fds(line, _MESSAGE_LIMIT, _MOST_FILES)
    if not data:
        raise ConnectionResetError("the keeper hands nothing over")
    message = json.loads(data)
    image, disk, hosts, console, *others = fds
    covers = dict(zip(message["covers"], others, strict=False))
    return Handed(
        image=image,
        disk=disk,
        hosts=hosts,
        console=console,
        covers=covers,
        shared=dict(zip(message["shared"], others[len(covers) :], strict=True)),
        seed=message["seed"],
    )


def _plug(line: socket.socket, order: Order, pid: int) -> None:
    """Connect a machine that has a network namespace now, and let it have its control groups."""
    for group in order.cgroups:
        cgroups.hand_to(group, order.first_id)
    address = order.definition.address
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    outside = Netlink()
    try:
        mac = hardware_address(address)
        outside.cable(cable_name(address), order.bridge, "eth0", namespace, mac)
    finally:
        outside.close()
        os.close(namespace)
    line.sendall(b"+")
