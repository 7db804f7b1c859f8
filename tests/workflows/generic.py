"""One suite for every workflow: nothing doubled, nothing left, whatever happens.

A workflow is described by a function at the top level of a module, `make_case(place)`.  Given a
folder, it returns a `Case`: the workflow, what its steps act through, and how to look at the world
they act on.  It is called anew in each process, always with the same folder for the same trial, so
everything it needs to find again must be below that folder (or be named after it).

    def make_case(place: Path) -> Case:
        world = Folder(place)
        return Case(workflow=RENT, tools=world, seen=world.seen)

    def test_rent(kind, new_database, tmp_path):
        check_workflow(make_case, new_database(kind), tmp_path)

`check_workflow` makes these trials, each with its own folder and run:

- plainly, once: what is `seen` then is what every trial that succeeds must end with;
- every `do` executed twice;
- for each step, `do` fails finally after it has acted: what is `seen` must be what it was before
  the run, or what the case says it is once undone; once with every `undo` executed once, once with
  every `undo` executed twice;
- for each step, a real process is killed (SIGKILL) before `do`, after `do` but before the journal
  knows, and after the journal knows; this process then finishes the run;
- the same for each `undo`, of a run whose last step fails (the last that does not stop).

Each step is killed at one of these three moments, in turn; at all of them in `make test-all`, and
in tests/engine with workflows that cost nothing.

Steps that stop rather than undo (OnFailure.STOP) must leave the run stuck, and resuming it must
end as if nothing had happened.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from databases import KINDS
from essaim.engine.execute import Engine
from essaim.engine.owner import this_owner
from essaim.engine.workflow import OnFailure, Step, Workflow
from essaim.model.errors import RejectedError
from essaim.model.journal import Move
from essaim.model.runs import Again, NewRun, Run, RunState, StepState
from essaim.store.database import migrate, open_database
from essaim.store.journal import SqlJournal
from patience import EVERYTHING

#: A trial that has not ended by then never will.
PATIENCE = 120.0


def nothing() -> None:
    """Leave the world as it is."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workflow and the world it acts on, for one trial."""

    workflow: Workflow
    tools: Any
    seen: Callable[[], Any]  #: all there is, as something that can be compared
    input: Mapping[str, Any] = field(default_factory=dict)
    subject: str = "subject"
    others: tuple[Workflow, ...] = ()  #: those of the children it spawns
    slots: Callable[[str], int] = lambda _name: 1
    journal: SqlJournal | None = None  #: on the database its steps use, if they use the same
    #: What is seen once it was undone, or a function that judges it; when None, what was before.
    undone: Any = None
    clean: Callable[[], None] = nothing  #: called when a trial has ended


MakeCase = Callable[[Path], Case]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is to go wrong."""

    name: str
    run: str
    place: str
    url: str
    twice: bool = False  #: every `do`
    undo_twice: bool = False
    fails: str = ""  #: the step whose `do` fails, after it has acted
    kill: str = ""  #: the step around which the process is killed
    when: str = ""  #: `before`, `after`, or `written`
    undoing: bool = False  #: kill around `undo` rather than `do`


#: When a step may be killed.
MOMENTS = ("before", "after", "written")
#: Kinds of trials that may be made apart, so that they can be made at the same time.
PARTS = ("failures", "kills")


def every_trial(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Name what to try, as (kind of database, workflow, part).

    Each on one kind after the other: that every kind survives failures and kills at all is tried
    with workflows that cost nothing, in tests/engine.  `make test-all` tries everything.
    """
    return [
        (kind, name, part)
        for number, name in enumerate(names)
        for turn, part in enumerate(PARTS, number)
        for kind in KINDS
        if EVERYTHING or kind == KINDS[turn % len(KINDS)]
    ]


def check_workflow(
    make_case: MakeCase,
    url: str,
    place: Path,
    parts: Sequence[str] = PARTS,
    *,
    every_moment: bool = EVERYTHING,
) -> None:
    """Make every trial; AssertionError names the one that did not end well."""
    suite = Suite(make_case, url, place, every_moment=every_moment)
    try:
        suite.plainly()
        if "failures" in parts:
            suite.twice()
            suite.failures()
        if "kills" in parts:
            suite.kills()
            suite.kills_while_undoing()
    finally:
        suite.close()


class Suite:
    """The trials of one workflow on one database.  Each method is one kind of trial."""

    def __init__(
        self, make_case: MakeCase, url: str, place: Path, *, every_moment: bool = True
    ) -> None:
        self._make_case = make_case
        self._every_moment = every_moment
        self._url = url
        self._place = place
        self._number = 0
        self._nursery: Nursery | None = None
        self._wanted: Any = None
        self.database = open_database(url)
        migrate(self.database)
        self.journal = SqlJournal(self.database)
        table = make_case(self._folder("table"))
        self.steps = table.workflow.steps
        table.clean()

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
        self.database.close()

    def plainly(self) -> None:
        """Nothing goes wrong."""
        self._succeeds(self._trial("plain"))

    def twice(self) -> None:
        """Each step executed twice."""
        self._succeeds(self._trial("twice", twice=True))

    def failures(self) -> None:
        """Failure at each step, with each undo executed once and twice."""
        for step in self.steps:
            # One that stops undoes nothing, once or twice.
            for doubled in (False, True) if step.on_failure is OnFailure.UNDO else (False,):
                name = f"{step.name} fails" + (", undone twice" if doubled else "")
                self._fails(self._trial(name, fails=step.name, undo_twice=doubled))

    def kills(self) -> None:
        """Kill -9 before, after and beyond each step, then resume.

        The end of a step and the beginning of the next are one write: before one is beyond another.
        """
        for number, step in enumerate(self.steps):
            for when in self._moments(number, MOMENTS[number > 0 :]):
                name = f"killed {when} {step.name}"
                self._succeeds(self._trial(name, kill=step.name, when=when))

    def kills_while_undoing(self) -> None:
        """Kill -9 before, after and beyond each undo of a run whose last step fails.

        Its last step that is undone at all: those that stop come after the point of no return.
        """
        undone = [step for step in self.steps if step.on_failure is OnFailure.UNDO]
        if not undone:
            return
        last = undone[-1]
        for number, step in enumerate(self.steps):
            for when in self._moments(number, MOMENTS) if step.undo else ():
                name = f"killed {when} undo of {step.name}"
                trial = self._trial(name, fails=last.name, kill=step.name, when=when, undoing=True)
                self._fails(trial)

    def _moments(self, number: int, of: Sequence[str]) -> Sequence[str]:
        return of if self._every_moment else [of[number % len(of)]]

    def _trial(self, name: str, **what: Any) -> Trial:
        self._number += 1
        place = self._folder(f"trial-{self._number}")
        return Trial(name=name, run=f"run-{self._number}", place=str(place), url=self._url, **what)

    def _folder(self, name: str) -> Path:
        folder = self._place / name
        folder.mkdir(parents=True)
        return folder

    def _succeeds(self, trial: Trial) -> None:
        case = self._make_case(Path(trial.place))
        try:
            self._run(trial, case)
            self._assert_done(trial, case)
        finally:
            case.clean()

    def _assert_done(self, trial: Trial, case: Case) -> None:
        run = self._get(trial)
        assert run.state is RunState.DONE, f"{trial.name}: {run.state}: {run.error}"
        seen = case.seen()
        if self._wanted is None:
            self._wanted = seen
        assert seen == self._wanted, f"{trial.name}: differs: {seen}, not {self._wanted}"

    def _fails(self, trial: Trial) -> None:
        case = self._make_case(Path(trial.place))
        before = case.seen() if case.undone is None else case.undone
        try:
            self._run(trial, case)
            if case.workflow.step(trial.fails).on_failure is OnFailure.STOP:
                assert self._get(trial).state is RunState.STUCK, trial.name
                engine = self._engine(case, dataclasses.replace(trial, fails=""))
                engine.resume(trial.run)
                self._finish(engine, trial)
                self._assert_done(trial, case)
            else:
                run = self._get(trial)
                assert run.state is RunState.FAILED, f"{trial.name}: {run.state}: {run.error}"
                seen = case.seen()
                well = case.undone(seen) if callable(case.undone) else seen == before
                assert well, f"{trial.name}: something is left: {seen}"
        finally:
            case.clean()

    def _run(self, trial: Trial, case: Case) -> None:
        if trial.kill:
            self._kill(trial)
            # The killer's marks are not in this process: only failures go on failing.
            trial = dataclasses.replace(trial, kill="")
        engine = self._engine(case, trial)
        engine.start([new_run(trial, case)])
        engine.release_dead()
        self._finish(engine, trial)

    def _kill(self, trial: Trial) -> None:
        if self._nursery is None:
            self._nursery = Nursery(self._make_case)
        assert self._nursery.carry(trial) == -signal.SIGKILL, f"{trial.name}: was not killed"

    def _engine(self, case: Case, trial: Trial) -> Engine:
        return make_engine(self.journal, case, trial, owner=this_owner())

    def _finish(self, engine: Engine, trial: Trial) -> None:
        finish(engine, self.journal, trial.run)
        engine.close()
        uses = self.database.read(lambda c: c.exec_driver_sql("SELECT run FROM slot_use").all())
        assert not uses, f"{trial.name}: slots are left: {uses}"

    def _get(self, trial: Trial) -> Run:
        run = self.journal.get(trial.run)
        assert run is not None
        return run


def new_run(trial: Trial, case: Case) -> NewRun:
    return NewRun(
        id=trial.run,
        workflow=case.workflow.name,
        subject=case.subject,
        input=case.input,
        holds=f"trial:{trial.run}",
    )


def make_engine(journal: Any, case: Case, trial: Trial, *, owner: str) -> Engine:
    disturbed = disturb(case.workflow, trial)
    workflows = {flow.name: flow for flow in (disturbed, *case.others)}
    journal = case.journal or journal
    if trial.when == "written":
        journal = DeadlyJournal(journal, trial)
    return Engine(journal, workflows, case.tools, owner=owner, slots=case.slots, random=lambda: 0.0)


def finish(engine: Engine, journal: SqlJournal, run: str) -> None:
    """Work until nothing moves the run any more."""
    deadline = time.monotonic() + PATIENCE
    while not engine.settled(run):
        due = engine.work()
        if due is not True:
            assert time.monotonic() < deadline, f"{run} does not end: {journal.get(run)}"
            time.sleep(min(due, 0.05))


def disturb(workflow: Workflow, trial: Trial) -> Workflow:
    """The workflow as it is, but for what is to go wrong."""
    return Workflow(workflow.name, tuple(_disturb(step, trial) for step in workflow.steps))


def _disturb(step: Step, trial: Trial) -> Step:
    def do(context: Any) -> Any:
        answer = _around(step.do, context, step, trial, undoing=False)
        if isinstance(answer, Again):
            return answer
        if trial.twice:
            again = step.do(context)
            # Its first execution may have begun something that the second sees under way.
            answer = answer if isinstance(again, Again) else again
        if trial.fails == step.name:
            raise RejectedError(f"{step.name}: made to fail")
        return answer

    def undo(context: Any) -> Any:
        assert step.undo is not None
        answer = _around(step.undo, context, step, trial, undoing=True)
        if trial.undo_twice and not isinstance(answer, Again):
            step.undo(context)
        return answer

    return dataclasses.replace(step, do=do, undo=undo if step.undo else None)


def _around(act: Callable[[Any], Any], context: Any, step: Step, trial: Trial, **at: bool) -> Any:
    deadly = trial.kill == step.name and trial.undoing == at["undoing"]
    if deadly and trial.when == "before":
        die()
    answer = act(context)
    if deadly and trial.when == "after":
        die()
    return answer


class DeadlyJournal:
    """A journal that kills its process once it has written the end of a step."""

    def __init__(self, journal: SqlJournal, trial: Trial) -> None:
        self._journal = journal
        self._trial = trial

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def write(self, run: Run, lease: float, move: Move, act: Any = None) -> bool:
        written = self._journal.write(run, lease, move, act)
        end = StepState.UNDONE if self._trial.undoing else StepState.DONE
        ended = [(mark.name, mark.state) for mark in move.marks]
        if move.done:
            ended.append((move.begins, StepState.DONE))
        if (self._trial.kill, end) in ended:
            die()
        return written


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Nursery:
    """A process without threads that has imported everything and forks one for each trial."""

    def __init__(self, make_case: MakeCase) -> None:
        code = make_case.__code__
        tests = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from workflows import generic; generic.nurse()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
        )
        self._say({"file": code.co_filename, "name": code.co_name})

    def carry(self, trial: Trial) -> int:
        """Let a process carry the trial's run; return how it ended, negative for a signal."""
        self._say(dataclasses.asdict(trial))
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()

    def _say(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()


def nurse() -> None:
    """What the nursery's process does until its input ends."""
    where = json.loads(sys.stdin.readline())
    make_case = load(where["file"], where["name"])
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            try:
                carry(make_case, Trial(**json.loads(line)))
            except BaseException:  # noqa: BLE001 - a fork must never return from here
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)  # noqa: T201 - it is the answer


def load(file: str, name: str) -> MakeCase:
    """A function at the top level of a file that is no module of a package."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("case_under_trial", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: MakeCase = getattr(module, name)
    return found


def carry(make_case: MakeCase, trial: Trial) -> None:
    """Carry a trial's run in this process, to its end or the process's."""
    database = open_database(trial.url)
    journal = SqlJournal(database)
    case = make_case(Path(trial.place))
    engine = make_engine(journal, case, trial, owner=this_owner())
    engine.start([new_run(trial, case)])
    finish(engine, journal, trial.run)
