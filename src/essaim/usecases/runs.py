"""Look at runs, resume them, give them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from essaim.couriers.following import lacking
from essaim.model.errors import UnknownError
from essaim.model.fleet import Role
from essaim.model.runs import Run, RunState, StepRecord

if TYPE_CHECKING:
    from essaim.model.fleet import User
    from essaim.model.runs import CommandLog
    from essaim.usecases.services import Services


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run with its steps and children."""

    run: Run
    steps: Sequence[StepRecord]
    children: Sequence[Run]


def recent(services: Services, *, limit: int) -> Sequence[Run]:
    """The newest runs that nobody else started, newest first."""
    return explained(services, services.journal.list(roots=True, limit=limit))


def show(services: Services, run_id: str) -> RunDetail:
    """One run in full."""
    return _detail(services, _get(services, run_id))


def work(services: Services, by: User, run_id: str) -> RunDetail:
    """One run in full, for operators; others see the work on their own leases."""
    found = services.journal.get(run_id)
    if found is not None and by.role is Role.MEMBER:
        lease = services.leases.get(str(found.input.get("lease", "")))
        found = found if lease is not None and lease.user == by.id else None
    if found is None:
        # The same sentence for what is not there and for what is another's.
        raise UnknownError(f"no run {run_id}", hint="see `run` of your leases")
    return _detail(services, found)


def resume(services: Services, run_id: str) -> Run:
    """Let a stuck run, and the stuck ones below it, go on from where they failed."""
    run = _get(services, run_id)
    services.engine.release_dead()
    services.engine.resume(run.id)
    return run


def abandon(services: Services, run_id: str) -> None:
    """Give a run up as it is, with all below it.  Nothing is undone."""
    services.engine.abandon(_get(services, run_id).id)


def logs(services: Services, *, run: str = "", machine: str = "", limit: int) -> list[CommandLog]:
    """What commands printed, oldest first: of a run and those below it, or on a machine."""
    return services.logs.read(run=run, machine=machine, limit=limit)


def explained(services: Services, runs: Sequence[Run]) -> Sequence[Run]:
    """Let the notes of runs that no live worker may carry say so."""
    if not services.broker or all(run.state is not RunState.READY for run in runs):
        return runs
    served = services.workers.sites()
    return [
        replace(run, note=lacking(run.site))
        if run.state is RunState.READY and run.site not in served
        else run
        for run in runs
    ]


def _detail(services: Services, run: Run) -> RunDetail:
    journal = services.journal
    (told,) = explained(services, [run])
    return RunDetail(told, journal.steps(run.id), explained(services, journal.children(run.id)))


def _get(services: Services, run_id: str) -> Run:
    run = services.journal.get(run_id)
    if run is None:
        raise UnknownError(f"no run {run_id}", hint="essaim runs lists them")
    return run
