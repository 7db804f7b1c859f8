"""A hundred bare machines: how long, how much memory, and how long to see that all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim_lab.bench import processes
from essaim_lab.bench.control import CHECKOUT, Essaim, control_plane
from essaim_lab.bench.prototype import raise_machines
from essaim_lab.bench.rows import CannotRunError, Row

if TYPE_CHECKING:
    from pathlib import Path

STACK = "examples/bare"
_MEGA = 1e6


def measure(*, quick: bool) -> list[Row]:
    """Raise bare machines until each has answered an authenticated command; look; take down."""
    count = 20 if quick else 100
    with control_plane("base") as essaim:
        rootfs = _rootfs(essaim)
        before = processes.available()
        up = essaim.up(STACK, "bare", f"nodes={count}")
        seen = before - processes.available()
        pids = [one.pid for one in processes.tree(_keepers(essaim))]
        if len(pids) < count:
            raise CannotRunError(f"found {len(pids)} processes of {count} machines in /proc")
        resident, in_tmpfs = processes.memory(pids), processes.tmpfs(pids)
        on_disk = processes.disk(essaim.home / "sandbox" / "bare" / "machines")
        everyone = essaim("run", "bare", "--", "true")
        again = essaim.up(STACK, "bare", f"nodes={count}")
        if "nothing to change" not in again.err:
            raise CannotRunError(f"`{again.command}` changed something:\n{again.err}")
        down = essaim.down("bare")
    script, script_memory = raise_machines(count, rootfs)
    each = 1 / count / _MEGA
    return [
        Row(
            what=f"{count} bare machines to an authenticated SSH command on all",
            value=up.wall, unit="s", most=15, command=up.command,
            peer=script, least_ratio=1, note=f"CPU of the command {up.cpu:.2f} s",
        ),
        Row(
            what="memory of one machine: processes (PSS) and tmpfs",
            value=(resident + in_tmpfs) * each, unit="MB", most=6,
            command="/proc/PID/smaps_rollup and statvfs of the keeper's tree",
            note=f"processes {resident * each:.2f} MB, tmpfs {in_tmpfs * each:.2f} MB",
        ),
        Row(
            what="memory of one machine: MemAvailable before and after",
            value=seen * each, unit="MB", command="/proc/meminfo", peer=script_memory,
            # Few machines do not stand out from whatever else this computer does.
            most=None if quick else 6,
            note="the whole computer's: the kernel's share is in it, whatever else runs too",
        ),
        Row(
            what="disk of one machine", value=on_disk * each, unit="MB",
            command="st_blocks below its directory",
        ),
        Row(
            what=f"a command on all {count}", value=everyone.wall, unit="s",
            command=everyone.command,
        ),
        Row(
            what=f"up again, nothing to change ({count})", value=again.wall, unit="s", most=2,
            command=again.command,
        ),
        Row(what=f"down ({count})", value=down.wall, unit="s", command=down.command),
    ]  # fmt: skip


def _keepers(essaim: Essaim) -> list[int]:
    """Find the processes that hold the stack: all its machines descend from them."""
    return processes.named(str(essaim.home / "sandbox" / "bare"))


def _rootfs(essaim: Essaim) -> Path:
    """Where the image of the stack is unpacked, for the peer to use the very same."""
    from essaim.config.compose import compose  # noqa: PLC0415 - Hydra is heavy

    app = essaim.app()
    try:
        found = app.images.ready(compose(str(CHECKOUT / STACK), ()).stack.images["base"])
    finally:
        app.close()
    if found is None:
        raise CannotRunError("the image `base` was built and is not in the cache")
    return found
