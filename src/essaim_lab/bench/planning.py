"""Planning for ten thousand machines: how long, and whether twice as many take twice as long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim_lab.bench import terraform
from essaim_lab.bench.control import CHECKOUT, control_plane
from essaim_lab.bench.rows import Row
from essaim_lab.bench.timing import best, clock

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    for count in (most // 10, most):
        yield _command(count)


def _pure(where: str, count: int) -> Iterator[Row]:
    compose = best(2, lambda: clock(lambda: _stack(where, count)))
    yield Row(
        what=f"compose {where}, {count:,} machines", value=compose, unit="s",
        command=f"compose({where!r}, ['nodes={count}', {_ROOM!r}])",
    )  # fmt: skip
    seconds = {}
    for each in (count // 10, count // 2, count):
        seconds[each] = _plan_seconds(_stack(where, each))
        yield Row(
            what=f"plan {where}, {each:,} machines (diff, order, estimate)",
            value=seconds[each], unit="s", most=_TARGET if each == count else None,
            command="diff(stack, World()), estimate and fingerprints of it",
        )  # fmt: skip
    yield Row(
        what=f"plan {where}: {count:,} machines against {count // 2:,}",
        value=seconds[count] / seconds[count // 2], unit="times", most=_LINEAR,
        command="ratio of the two times; 2 is linear",
    )  # fmt: skip


def _plan_seconds(stack: Stack) -> float:
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

    return best(3, lambda: clock(plan))


def _stack(where: str, count: int) -> Stack:
    from essaim.config.compose import compose  # noqa: PLC0415 - Hydra is heavy

    return compose(str(CHECKOUT / where), (f"nodes={count}", _ROOM)).stack


def _command(count: int) -> Row:
    with control_plane() as essaim:
        done = essaim("plan", _BARE, f"nodes={count}", _ROOM)
    return Row(
        what=f"essaim plan, {count:,} machines, from Enter to prompt",
        value=done.wall, unit="s", command=done.command,
        peer=terraform.plan(count), least_ratio=1,
    )  # fmt: skip
