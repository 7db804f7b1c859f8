"""Run a workload on a stack that stands, and bring back what its jobs recorded."""

from __future__ import annotations

import base64
import re
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.config.tree import LIBRARY
from essaim.model.errors import (
    EssaimError,
    InvalidError,
    Problem,
    RejectedError,
    SetupError,
    TransientError,
)
from essaim.plan.comparing import SECOND, Clock, Execution, Submission, Trial
from essaim.usecases.machines import targets

if TYPE_CHECKING:
    import threading

    from essaim.config.workloads import Scheduler, Workload
    from essaim.model.stacks import Machine, Stack
    from essaim.remote.ssh import Target
    from essaim.usecases.services import Services

#: Where jobs find their program and leave their records; one folder for each trial.
PLACE = "/var/tmp/essaim-compare"  # noqa: S108 - a folder of its own is made in it
#: Seconds between two looks at the queue: often enough, and jobs hardly feel it.
LOOK_EVERY = 1.0
#: Seconds that a controller may be silent before the trial is given up.
SILENT = 60.0
#: Seconds for a command that should take a moment.
MOMENT = 120.0
#: Times a clock is read; the quickest answer counts.
READINGS = 5
NANOSECONDS = re.compile(r"[0-9]{19}")


class StoppedError(EssaimError):
    """Somebody asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A stack that stands, and what is to be run on it."""

    services: Services
    stack: Stack
    scheduler: Scheduler
    workload: Workload
    halt: threading.Event
    tell: Callable[[str], None]

    @property
    def controller(self) -> Machine:
        """The machine jobs are submitted on."""
        return next(m for m in self.stack.machines if self.scheduler.controller in m.roles)

    @property
    def nodes(self) -> list[Machine]:
        """The machines jobs run on."""
        return [m for m in self.stack.machines if self.scheduler.node in m.roles]

    @property
    def user(self) -> str:
        """Who submits: schedulers refuse root, or should."""
        return self.workload.user or str(_base(self.stack).get("user", ""))


def check(stack: Stack, scheduler: Scheduler, workload: Workload) -> None:
    """Refuse, before anything is raised, what could never run."""
    problems = []
    cores = [m.size.cores for m in stack.machines if scheduler.node in m.roles]
    if not cores:
        problems.append(Problem(f"{stack.source}: no machine carries the role {scheduler.node}"))
    elif max(cores) < workload.cores:
        what = f"{workload.name}: a job wants {workload.cores} cores, and no node has more than "
        problems.append(Problem(what + str(max(cores)), hint="size=large, or workload.cores=1"))
    if not workload.user and not _base(stack).get("user"):
        what = f"{workload.name}: nobody is named who submits the jobs"
        hint = "give the machines the role base, which makes an account, or set workload.user"
        problems.append(Problem(what, hint=hint))
    if problems:
        raise InvalidError(problems)


def run(bench: Bench) -> Trial:
    """Submit the jobs, wait until none is left, and collect; StoppedError when asked to stop.

    Jobs that are still there when the workload's time is over are cancelled and count as failed.
    """
    place = f"{PLACE}/{secrets.token_hex(4)}"
    controller, *nodes = targets(bench.services, bench.stack, [bench.controller, *bench.nodes])
    _install(bench, place, [controller, *nodes])
    clocks = [read_clock(bench.services, target) for target in (controller, *nodes)]
    _command(bench, controller, bench.scheduler.prepare)
    submissions = _submit(bench, place, controller)
    took = (submissions[-1].ended - submissions[0].began) / SECOND
    bench.tell(f"{bench.workload.jobs} jobs submitted in {took:.2f} s")
    _wait(bench, controller)
    return Trial(
        jobs=bench.workload.jobs,
        cores=bench.workload.cores,
        slots=sum(machine.size.cores for machine in bench.nodes),
        controller=str(controller.name),
        submissions=submissions,
        executions=list(_collect(bench, place, nodes)),
        clocks=clocks,
        chained=bench.workload.submit == "chain",
    )


def version(bench: Bench) -> str:
    """What the scheduler calls itself."""
    (controller,) = targets(bench.services, bench.stack, [bench.controller])
    said = _command(bench, controller, bench.scheduler.version, strict=False).split("\n")
    return next((line.strip() for line in said if line.strip()), "")


def read_clock(services: Services, target: Target) -> Clock:
    """How far a machine's clock is before ours, from the quickest of several readings."""
    found: list[tuple[int, int]] = []
    for _ in range(READINGS):
        before = time.time_ns()
        said = services.remote.run(target, ["date", "+%s%N"], within=MOMENT).stdout.strip()
        after = time.time_ns()
        if not NANOSECONDS.fullmatch(said):
            raise SetupError(
                f"{target.name}: its clock gives {said[:40]!r}, not nanoseconds",
                hint="jobs record their times with `date +%s%N`: use an image with GNU coreutils",
            )
        found.append(((after - before) // 2, int(said) - (before + after) // 2))
    error, offset = min(found)
    return Clock(machine=str(target.name), offset=offset, error=error)


def _base(stack: Stack) -> dict[str, object]:
    role = stack.roles.get("base")
    return {**(role.vars if role else {}), **stack.vars.get("base", {})}


def _install(bench: Bench, place: str, machines: Sequence[Target]) -> None:
    its, how = bench.workload, bench.scheduler
    about = f"export JOB_SECONDS={its.seconds:g} JOB_CORES={its.cores}\n"
    shipped = LIBRARY / "compare"
    files = {
        "job": (shipped / "job").read_text(encoding="utf-8"),
        "submit": (shipped / "submit").read_text(encoding="utf-8"),
        "command": about + its.command + "\n",
        "array": how.array,
        "one": how.one,
        "after": how.after,
    }
    # Base64: what people wrote is data here, whatever characters it has.
    script = [f"set -e; umask 022; mkdir -p {place}/records {place}/drafts; cd {place}"]
    for name, text in files.items():
        data = base64.b64encode(text.encode()).decode()
        script.append(f"printf %s {data} | base64 -d >{name}")
    script.append("chmod 0755 job submit; chmod 1777 records drafts")
    _everywhere(bench, machines, "\n".join(script))


def _everywhere(bench: Bench, machines: Sequence[Target], script: str) -> dict[str, str]:
    """Run a script on all of them; what each printed."""
    said: dict[str, str] = {}
    for target, result in bench.services.remote.fan_out(machines, script, within=MOMENT):
        if isinstance(result, EssaimError):
            raise result
        if result.exit_code:
            raise RejectedError(f"{target.name}: exit {result.exit_code}: {result.output[-500:]}")
        said[str(target.name)] = result.stdout
    return said


def _command(bench: Bench, target: Target, script: str, *, strict: bool = True) -> str:
    """Run a scheduler's script as root; what it printed."""
    if not script.strip():
        return ""
    env = {"WHO": bench.user, "CORES": str(bench.workload.cores)}
    result = bench.services.remote.run(target, script, env=env, within=MOMENT)
    if strict and result.exit_code:
        said = result.output.strip()[-500:]
        raise RejectedError(f"{target.name}: {script.strip()}: exit {result.exit_code}: {said}")
    return result.stdout


def _submit(bench: Bench, place: str, controller: Target) -> list[Submission]:
    its = bench.workload
    env = {"WAY": its.submit, "JOBS": str(its.jobs), "CORES": str(its.cores)}
    words = ["env", *(f"{name}={value}" for name, value in env.items()), f"{place}/submit"]
    # As a login: Grid Engine and OAR look for their settings and for a home directory.
    command = ["runuser", "-l", bench.user, "-c", shlex.join(words)]
    result = bench.services.remote.run(controller, command, within=its.within)
    found = [
        Submission(first=first, last=last, began=began, ended=ended, exit_code=code)
        for first, last, began, ended, code in _numbers(result.stdout, 5)
    ]
    if not any(each.exit_code == 0 for each in found):
        said = result.output.strip()[-500:]
        raise RejectedError(
            f"{bench.scheduler.summary} took none of the jobs: {said}",
            hint="compare again with --keep, then look at the controller: essaim ssh",
        )
    return found


def _wait(bench: Bench, controller: Target) -> None:
    """Return when the queue is empty, or what was left when the time was over is cancelled."""
    began = heard = time.monotonic()
    said, cancelled = -1, False
    while (left := _left(bench, controller)) != 0:
        now = time.monotonic()
        if left is not None:
            heard = now
        elif now - heard > SILENT:
            raise TransientError(
                f"{controller.name} has not said for {SILENT:.0f} s how many jobs are left",
                hint="the same command goes on from here",
            )
        over = now - began - bench.workload.within
        if over > 0 and not cancelled:
            bench.tell(f"jobs are left after {bench.workload.within:.0f} s: cancelling them")
            _command(bench, controller, bench.scheduler.cancel, strict=False)
            cancelled = True
        elif over > SILENT:
            raise TransientError(
                f"{controller.name}: jobs are there {SILENT:.0f} s after they were cancelled"
            )
        elif left is not None and left != said:
            # Of how many it is not said: jobs of an interrupted comparison count as well.
            bench.tell(f"{left} {'job' if left == 1 else 'jobs'} left")
            said = left
        if bench.halt.wait(LOOK_EVERY):
            raise StoppedError("stopped while jobs ran")


def _left(bench: Bench, controller: Target) -> int | None:
    """How many jobs are not over; None when the scheduler does not say."""
    try:
        said = _command(bench, controller, bench.scheduler.left).split()
        return int(said[-1])
    except (TransientError, RejectedError, ValueError, IndexError):
        return None


def _collect(bench: Bench, place: str, nodes: Sequence[Target]) -> list[Execution]:
    script = f"find {place}/records -type f -exec cat {{}} +"
    found = [
        Execution(job=job, machine=machine, began=began, ended=ended, exit_code=code)
        for machine, text in _everywhere(bench, nodes, script).items()
        for job, began, ended, code in _numbers(text, 4)
    ]
    return sorted(found, key=lambda each: (each.began, each.job))


def _numbers(text: str, count: int) -> list[list[int]]:
    """The lines that are so many numbers; a login may print others."""
    lines = [line.split() for line in text.splitlines()]
    return [
        [int(word) for word in words]
        for words in lines
        if len(words) == count and all(word.isdecimal() for word in words)
    ]
