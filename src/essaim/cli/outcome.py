"""What is said when a plan was carried out: what failed and why, and what to type next."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.cli.output import inform, ranges, say
from essaim.cli.terminal import columns, fold, paint, shorten
from essaim.cli.tongue import in_their_language, said

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.runs import CommandLog, Run
    from essaim.model.stacks import Stack

#: Failures that are told one by one, and lines of output that are shown of each.
_TOLD, _LINES = 3, 10
_LOG = re.compile(r" \((?:see )?\S*essaim logs \S+\)$")
#: Commands of a run that are looked through for the one that failed.
_LOOKED = 20


@dataclass(frozen=True, slots=True)
class Failed:
    """A change that failed: why, and the command that did."""

    run: Run
    log: CommandLog | None

    @property
    def machine(self) -> str:
        """The machine it was on; empty when it was on none."""
        subject = self.run.subject.partition(":")[0]
        return subject if "/" in subject else ""

    @property
    def why(self) -> str:
        """Its error, without the name before it and the log behind it: both are said anyway."""
        return _LOG.sub("", self.run.error.removeprefix(f"{self.machine}: "))

    @property
    def kind(self) -> tuple[str, ...]:
        """The same for those that failed in the same way on different machines."""
        if self.log is None:
            return (self.run.workflow, self.why)
        return (self.run.workflow, self.log.command, str(self.log.exit_code))


def show_hints(stack: Stack) -> None:
    """Say what to type next, as the stack has it, or what is of use with any stack."""
    lines = stack.hints or _usual(stack)
    for at, line in enumerate(lines):
        inform(f"{'  → ' if at == 0 else '    '}{line}")


def _usual(stack: Stack) -> Sequence[str]:
    if not stack.machines:
        return (f"essaim status {stack.name}",)
    return (f"essaim ssh {stack.machines[0].name}", f"essaim status {stack.name}")


def show_failures(app: App, run: Run) -> None:
    """Say which changes of a run failed: the command, its last lines, and where the log is."""
    head, _, rest = run.error.partition("\n")
    say(paint(f"{run.subject}: {in_their_language(head)}", "red", sys.stderr))
    kinds: dict[tuple[str, ...], list[Failed]] = {}
    for failed in _failed(app, run):
        kinds.setdefault(failed.kind, []).append(failed)
    if not kinds:
        for line in rest.splitlines():
            say(line)
    for alike in list(kinds.values())[:_TOLD]:
        _show(alike)
    if more := [each.run.subject for alike in list(kinds.values())[_TOLD:] for each in alike]:
        for line in fold(said("run.others", count=len(more), names=ranges(more)), indent="  "):
            say(line)
    if waiting := [line for line in rest.splitlines() if line.endswith("wait for them")]:
        say(waiting[0])


def _failed(app: App, run: Run) -> Iterator[Failed]:
    from essaim.model.runs import RunState

    for child in app.journal.children(run.id):
        if child.state in (RunState.FAILED, RunState.STUCK):
            logs = app.logs.read(run=child.id, limit=_LOOKED)
            yield Failed(child, next((log for log in reversed(logs) if log.exit_code), None))


def _show(alike: Sequence[Failed]) -> None:
    """Tell of one failure, and name those that are like it."""
    failed = alike[0]
    first, *others = failed.why.splitlines() or [failed.run.state.value]
    for line in fold(f"✗ {failed.run.subject}: {in_their_language(first)}", indent="  "):
        say(paint(line, "red", sys.stderr))
    if failed.log is not None:
        _show_command(failed.log)
    else:
        _show_output(others)
    if failed.machine:
        say(f"    → essaim logs {failed.machine}")
    if len(alike) > 1:
        names = ranges([each.run.subject for each in alike[1:]])
        for line in fold(said("run.same", count=len(alike) - 1, names=names), indent="    "):
            say(line)


def _show_command(log: CommandLog) -> None:
    room = (columns(sys.stderr) or sys.maxsize) - 6
    for line in log.command.strip().splitlines()[-_LINES:]:
        say(f"    $ {shorten(line, room)}")
    _show_output(log.output.splitlines())


def _show_output(lines: Iterable[str]) -> None:
    room = (columns(sys.stderr) or sys.maxsize) - 6
    for line in list(lines)[-_LINES:]:
        say(paint(f"    | {shorten(line.rstrip(), room)}", "dim", sys.stderr))
