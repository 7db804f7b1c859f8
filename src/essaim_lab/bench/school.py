"""A class of 600 on a simulated cluster: how near Essaim comes to what the cluster can do.

Beside it, on the same cluster: machines made with a fixed parallelism, and one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim_lab.bench.rows import CannotRunError, Peer, Row
from essaim_lab.bench.school_apply import COMMAND, Applied, school
from essaim_lab.bench.school_cluster import LARGE, SMALL, Like, Outcome
from essaim_lab.bench.school_policies import POLICIES, Policy, carry_out

if TYPE_CHECKING:
    from collections.abc import Iterator

STUDENTS = 600
#: Simulated seconds for each of the wall's, and for the same work once more, to see whether this
#: computer's speed is part of the result.
SPEED, SLOWER = 12.0, 4.0
SOME = 120  #: machines that are made at both speeds
AGREE = 0.05  #: by how much the two may differ
#: The same for a smoke test: everything is done, but the start of a command counts too much.
QUICK, QUICK_SPEED, QUICK_SLOWER = 20, 40.0, 20.0
TIMES = 3  #: how often nothing is changed; the middle one counts

NEAR = 1.15  #: times the least the cluster needs
CPU = 100.0  #: ms for each machine
CALLS = 8.0  #: of the API for each machine
THREADS, MEMORY = 32, 400  #: at most, with everybody in flight
AGAIN, AGAIN_CALLS = 3.0, 5  #: seconds and calls when there is nothing to change


def measure(*, quick: bool) -> Iterator[Row]:
    """Make the machines, see that nothing is left to do, and let others make them."""
    students, speed = (QUICK, QUICK_SPEED) if quick else (STUDENTS, SPEED)
    for like in (LARGE, SMALL):
        with school(like, students, speed) as ours:
            bound, first = ours.bound, ours.apply()
            if first.outcome.failed:
                raise CannotRunError(f"{first.outcome.failed} of {students} machines do not run")
            yield _near(like, first.outcome, bound, speed)
            yield _load(like, first)
            if like is LARGE:
                yield from _cost(first)
                yield from _again([ours.apply() for _ in range(1 if quick else TIMES)])
        for policy in POLICIES:
            yield from beside(policy, like, first.outcome, carry_out(policy, like, students))
    if quick:
        yield _speeds(QUICK // 2, QUICK_SPEED, QUICK_SLOWER, None)
    else:
        yield _speeds(SOME, SPEED, SLOWER, 1 + AGREE)


def _what(like: Like, machines: int) -> str:
    return f"{machines} machines, {like.most} at once"


def _near(like: Like, ours: Outcome, bound: float, speed: float) -> Row:
    return Row(
        what=f"{_what(like, ours.machines)}: time, as a multiple of the least possible",
        value=ours.seconds / bound, unit="x", most=NEAR,
        command=f"{COMMAND}; {speed:g} simulated seconds in one",
        note=f"{ours.seconds:.0f} s, at least {bound:.0f} s (simulated): {like.sentence}",
    )  # fmt: skip


def _load(like: Like, first: Applied) -> Row:
    """Say how busy this computer was: Essaim runs in real time, and what slows it down counts."""
    return Row(
        what=f"{_what(like, first.outcome.machines)}: load of this computer meanwhile",
        value=first.load, unit="", command="the most in /proc/loadavg",
        note="the benchmark's own included",
    )  # fmt: skip


def _cost(first: Applied) -> Iterator[Row]:
    """Give the lines about what the control plane itself needs."""
    ours = first.outcome
    count = ours.machines
    yield Row(
        what="CPU of the control plane for each machine", value=first.done.cpu / count * 1000,
        unit="ms", most=CPU, command=COMMAND, note="the whole command, its start included",
    )  # fmt: skip
    yield Row(
        what="calls of the API for each machine", value=ours.calls / count, unit="", most=CALLS,
        command="counted by the simulator", note=_errors(ours),
    )  # fmt: skip
    yield Row(
        what=f"threads with {count} in flight", value=first.threads, unit="", most=THREADS,
        command="the most in /proc/PID/task",
    )  # fmt: skip
    yield Row(
        what=f"memory with {count} in flight", value=first.memory / 1e6, unit="MB", most=MEMORY,
        command="the most RSS in /proc/PID/statm",
    )  # fmt: skip


def _again(found: list[Applied]) -> Iterator[Row]:
    """Give the lines about a command that finds nothing to do."""
    middle = sorted(found, key=lambda one: one.done.wall)[len(found) // 2]
    count, cpu = middle.outcome.machines, sorted(one.done.cpu for one in found)
    yield Row(
        what=f"{count} students, nothing to change", value=middle.done.wall, unit="s", most=AGAIN,
        command=COMMAND,
        note=f"{cpu[len(cpu) // 2]:.2f} s of CPU; load {max(one.load for one in found):.1f}",
    )  # fmt: skip
    yield Row(
        what=f"{count} students, nothing to change: calls of the API",
        value=max(one.outcome.calls for one in found), unit="", most=AGAIN_CALLS,
        command="counted by the simulator",
    )  # fmt: skip


def _speeds(machines: int, fast: float, slow: float, most: float | None) -> Row:
    """See that the factor by which time is made to go faster is no part of the result."""
    found = []
    for speed in (fast, slow):
        with school(LARGE, machines, speed) as ours:
            found.append(ours.apply().outcome.seconds)
    return Row(
        what=f"{machines} machines: time at {fast:g}, as a multiple of that at {slow:g}",
        value=found[0] / found[1], unit="x", most=most, command=COMMAND,
        note=f"{found[0]:.0f} s and {found[1]:.0f} s (simulated)",
    )  # fmt: skip


def beside(policy: Policy, like: Like, ours: Outcome, theirs: Outcome) -> Iterator[Row]:
    """Give the lines that compare with one of the others."""

    def peer(value: float, note: str = "") -> Peer:
        return Peer(name=policy.name, value=value, command="proxmoxer, in virtual time", note=note)

    what = _what(like, ours.machines)
    each = theirs.calls / ours.machines
    slow = f"{theirs.seconds:.0f} s (simulated), {each:.1f} calls for each"
    yield Row(
        what=f"{what}: made in a simulated minute", value=ours.rate, unit="",
        more_is_better=True, command=COMMAND, peer=peer(theirs.rate, slow), least_ratio=1,
    )  # fmt: skip
    yield Row(
        what=f"{what}: time-outs of locks", value=ours.locked, unit="",
        command=COMMAND, peer=peer(theirs.locked),
    )  # fmt: skip
    yield Row(
        what=f"{what}: ids tried that were taken", value=ours.doubles, unit="", most=0,
        command=COMMAND, peer=peer(theirs.doubles),
    )  # fmt: skip
    yield Row(
        what=f"{what}: failed", value=ours.failed, unit="", most=0,
        command=COMMAND, peer=peer(theirs.failed, _errors(theirs)),
    )  # fmt: skip


def _errors(outcome: Outcome) -> str:
    return "; ".join(f"{many} times {text}" for text, many in outcome.errors.items())
