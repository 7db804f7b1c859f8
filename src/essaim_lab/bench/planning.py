"""Planning for ten thousand machines: how long, and whether twice as many take twice as long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim_lab.bench import terraform
from essaim_lab.bench.control import CHECKOUT, control_plane
from essaim_lab.bench.rows import Row
from essaim_lab.bench.timing import best, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from essaim.model.stacks import Stack

_ROOM = "network.cidr=10.64.0.0/16"
_TARGET = 2.0
_LINEAR = 2.5  #: 2 is linear; the rest is noise and memory that no longer fits a cache
_BARE, _SLURM = "examples/bare", "examples/slurm"


def measure(*, quick: bool) -> Iterator[Row]:
    """Plan from nothing and from a finished world, in this process and as a command."""
    most = 2_000 if quick else 10_000
    for where in (_BARE, _SLURM):
        yield from _pure(where, most)
    yield _command(most // 10, 3)
    yield _command(most, 1)


def _pure(where: str, most: int) -> Iterator[Row]:
    (compose,) = best(2, lambda: clock(lambda: _stack(where, most)))
    yield Row(
        what=f"compose {where}, {most:,} machines", value=compose, unit="s",
        command=f"compose({where!r}, ['nodes={most}', {_ROOM!r}])",
    )  # fmt: skip
    counts = (most // 10, most // 2, most)
    seconds = best(3, *(_planner(_stack(where, count)) for count in counts))
    for count, value in zip(counts, seconds, strict=True):
        yield Row(
            what=f"plan {where}, {count:,} machines (diff, order, estimate)",
            value=value, unit="s", most=_TARGET if count == most else None,
            command="diff(stack, World()), estimate and fingerprints of it",
        )  # fmt: skip
    yield Row(
        what=f"plan {where}: {most:,} machines against {most // 2:,}",
        value=seconds[2] / seconds[1], unit="times", most=_LINEAR,
        command="ratio of the two times; 2 is linear",
    )  # fmt: skip


def _planner(stack: Stack) -> Callable[[], float]:
    """Give a measurement of planning this stack from an empty world."""
    from essaim.config.serial import fingerprint  # noqa: PLC0415 - needs all of config
    from essaim.model.plans import World  # noqa: PLC0415
    from essaim.plan.diff import diff  # noqa: PLC0415
    from essaim.plan.digest import world_fingerprint  # noqa: PLC0415
    from essaim.plan.eta import estimate  # noqa: PLC0415

    known = {("raise", "create"): [0.1], ("configure", "run"): [0.1], ("build", "build"): [60.0]}
    world = World()

    def plan() -> None:
        changes = diff(stack, world)
        estimate(changes, known)
        world_fingerprint(world)
        fingerprint(stack)

    return lambda: clock(plan)


def _stack(where: str, count: int) -> Stack:
    from essaim.config.compose import compose  # noqa: PLC0415 - Hydra is heavy

    return compose(str(CHECKOUT / where), (f"nodes={count}", _ROOM)).stack


def _command(count: int, times: int) -> Row:
    ours, theirs = [], []
    with control_plane() as essaim:
        for _ in range(times):
            ours.append(essaim("plan", _BARE, f"nodes={count}", _ROOM))
            theirs.append(terraform.plan(count))
    done = min(ours, key=lambda one: one.wall)
    return Row(
        what=f"essaim plan, {count:,} machines, from Enter to prompt",
        value=done.wall, unit="s", command=done.command, least_ratio=1,
        peer=min(theirs, key=lambda peer: peer.value or 0),
    )  # fmt: skip
