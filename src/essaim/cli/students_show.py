"""What a person sees of a roster: what will be done, how far it is, who has what."""

from __future__ import annotations

import csv
import dataclasses
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from essaim.cli.carrying import FAILED, PARTLY, not_done
from essaim.cli.output import COLOURS, duration, inform, say
from essaim.cli.progress import redraws
from essaim.cli.terminal import fitting, fold, paint
from essaim.cli.tongue import in_their_language, said, spoken, tell

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.plan.rosters import Student
    from essaim.store.classes import Lesson
    from essaim.usecases.rosters import Planned
    from essaim.usecases.students import Progress, Row

_VERBS = (
    ("enrol", "+"),
    ("mend", "~"),
    ("reset", "~"),
    ("wake", "~"),
    ("withdraw", "-"),
    ("remove", "-"),
)
#: Seconds between two plain lines, and between two looks.
QUIET, LOOK = 5.0, 0.5
#: A rate is worth saying after so many; it is that of the last so many seconds.
ENOUGH, RECENT = 3, 30.0
#: Of failures, so many are told one by one.
TOLD = 20
#: Columns of a terminal from which on a table shows everything.
WIDE = 100
#: Of its columns, those that a narrower one does without: name, machine, since.
_SPARED = (1, 2, 5)
#: Which machine waits, and for how long already, is not what it waits for.
_WHOSE = re.compile(r"\b[\w.-]+/[\w.-]+: (?:\w+ [0-9]+: )?|(?<=starts )[0-9]+ ")
_TRIED = re.compile(r"^\w+: try [0-9]+ of [0-9]+ failed: ")


def plan_lines(planned: Planned) -> Iterator[str]:
    """What a roster comes to, in a few lines."""
    from essaim.plan.rosters import first_few

    decided, name = planned.decided, planned.roster.name
    yield said("students.plan", roster=name, kept=decided.kept, changes=len(decided.changes))
    for verb, symbol in _VERBS:
        reasons: dict[str, list[str]] = {}
        for change in decided.of(verb):
            reasons.setdefault(change.reason, []).append(change.key)
        for reason, keys in reasons.items():
            text = said(
                "students.plan.line",
                symbol=symbol,
                count=len(keys),
                verb=said(f"students.plan.{verb}"),
                reason=in_their_language(reason),
                few=in_their_language(first_few(keys)),
            )
            for line in fold(text.strip(), indent="  "):
                yield paint(line, COLOURS[symbol], sys.stderr)
    for kind in ("resting", "without", "outdated"):
        if those := getattr(decided, kind):
            few = in_their_language(first_few(those))
            yield said(f"students.plan.{kind}", count=len(those), few=few)


def follow(control: App, name: str, run_id: str) -> int:
    """Show how far a run over a roster is until it is over; gives the command's exit code.

    Whoever begins the run is to be `interruptible` from that moment on.
    """
    from essaim.model.runs import RunState
    from essaim.usecases import stacks, students

    began = time.monotonic()
    with _shown(control, name, run_id):
        run = stacks.follow(control, run_id)
    took = duration(time.monotonic() - began)
    last = students.progress(control, run_id)
    if run.state is not RunState.DONE:
        return not_done(control, run, last.done)
    failed = said("students.done_failed", failed=last.failed) if last.failed else ""
    text = said("students.done", roster=name, done=last.done, failed=failed, took=took, run=run_id)
    (say if last.failed else inform)(text)
    if not last.failed:
        return 0
    return PARTLY if last.done else FAILED


def tell_failures(control: App, name: str, run_id: str) -> None:
    """Say whom a run over a roster failed for, and why."""
    works = control.rosters.works.last(name)
    failed = [
        (login, works[login].error)
        for login, student in control.rosters.students(name).items()
        if student.run.startswith(f"{run_id}.") and login in works and works[login].error
    ]
    for login, why in failed[:TOLD]:
        for line in fold(f"✗ {login}: {in_their_language(why)}", indent="  "):
            say(paint(line, "red", sys.stderr))
    if len(failed) > TOLD:
        tell("students.more_failed", count=len(failed) - TOLD, roster=name)


class Pace:
    """How fast something goes of late: what was quick at first may not be later."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, ended: int, now: float) -> float:
        """How many end in a second, when so many have ended by now; 0 when nobody can say."""
        self._seen.append((now, ended))
        while now - self._seen[0][0] > RECENT:
            self._seen.popleft()
        since, before = self._seen[0]
        return (ended - before) / (now - since) if now > since else 0.0


def sentence(name: str, now: Progress, rate: float) -> str:
    """How far it is, how fast, how long it will take, and what it waits for."""
    ended = now.done + now.failed
    parts = [said("students.progress", roster=name, ended=ended, total=now.total)]
    if now.failed:
        parts.append(said("students.progress_failed", failed=now.failed))
    if ended >= ENOUGH and rate > 0:
        parts.append(said("students.progress_rate", rate=f"{rate * 60:.0f}"))
        if ended < now.total:
            left = duration((now.total - ended) / rate)
            parts.append(said("students.progress_left", left=left))
    waits: dict[str, int] = {}
    for note, many in now.waits:
        what = _waits_for(note)
        waits[what] = waits.get(what, 0) + many
    most = sorted(waits.items(), key=lambda each: -each[1])[:2]
    told = "; ".join(f"{what} ({many})" for what, many in most)
    return ", ".join(parts) + (f" · {told}" if told else "")


def _waits_for(note: str) -> str:
    """What a machine waits for, without which machine it is."""
    again = _TRIED.match(note)
    what = in_their_language(_WHOSE.sub("", note[again.end() :] if again else note))
    return said("students.tries_again", why=what) if again else what


@contextmanager
def _shown(control: App, name: str, run_id: str) -> Iterator[None]:
    """Say how far it is while the body runs: on one line of a terminal, else now and then."""
    from essaim.usecases import students

    ended = threading.Event()
    live = redraws()
    pace = Pace()
    pace.rate(0, time.monotonic())

    def show() -> None:
        last = ""
        while not ended.wait(LOOK if live else QUIET):
            now = students.progress(control, run_id)
            text = sentence(name, now, pace.rate(now.done + now.failed, time.monotonic()))
            if live:
                sys.stderr.write(f"\r\033[K{fitting(text)}")
                sys.stderr.flush()
            elif text != last:
                last = text
                inform(text)

    thread = threading.Thread(target=show, name="essaim-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if live:
            sys.stderr.write("\r\033[K")


def columns() -> list[str]:
    """The headings of a table of students."""
    return said("students.headings").split("|")


def cells(row: Row) -> tuple[str, ...]:
    """One student as cells of a table."""
    state = said(f"students.state.{row.state}")
    if row.power and row.state == "ready":
        state += f", {said(f'students.power.{row.power}')}"
    if row.until:
        date = time.strftime("%Y-%m-%d", time.localtime(row.until / 1000))
        state = said("students.until", state=state, date=date)
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.since / 1000))
    name = row.machine
    why = in_their_language(row.failed or row.doing)
    todo = in_their_language(row.todo)
    return (row.login, row.name, name, row.address, state, since, why, todo)


def print_table(rows: Sequence[Row]) -> None:
    """Everybody, one line each; counts below."""
    from essaim.cli.output import table

    shown = [cells(row) for row in rows]
    if sys.stdout.isatty():
        _print_rich(shown)
    elif rows:
        headings = columns()
        kept = [at for at in range(len(headings)) if any(cells_[at] for cells_ in shown)]
        filled = [[cells_[at] for at in kept] for cells_ in shown]
        sys.stdout.write(table(filled, [headings[at] for at in kept]) + "\n")
    print_counts(rows)


def print_counts(rows: Sequence[Row]) -> None:
    """How many stand how, and what to do about those that failed."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    told = [f"{many} {said(f'students.count.{state}')}" for state, many in counts.items()]
    say(", ".join(told) or said("students.counts_none"))
    if again := [row for row in rows if row.todo.startswith("essaim students retry")]:
        name = again[0].machine.partition("/")[0]
        tell("students.retry_these", roster=name, count=len(again))
    elif up := [row.machine for row in rows if row.state == "ready" and row.power == "on"]:
        inform(f"  → essaim ssh {up[0]}")


def _print_rich(shown: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    spared = _SPARED if console.width < WIDE else ()
    headings = columns()
    kept = [at for at in range(len(headings)) if at not in spared and any(row[at] for row in shown)]
    made = Table(*(headings[at] for at in kept), box=None, header_style="bold")
    colours = {"failed": "red", "stuck": "red", "coming": "yellow", "retired": "dim"}
    styles = {said(f"students.state.{state}"): colour for state, colour in colours.items()}
    for row in shown:
        style = next((style for state, style in styles.items() if row[4].startswith(state)), "")
        made.add_row(*(Text(row[at], style=style) for at in kept))
    if shown:
        console.print(made)


def print_csv(rows: Sequence[Row]) -> None:
    """Everybody, as a spreadsheet takes it: a cell never begins a formula."""
    from essaim.usecases.students import Row as Kind

    names = [field.name for field in dataclasses.fields(Kind)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(name, getattr(row, name)) for name in names])


def _cell(name: str, value: Any) -> Any:
    if name not in ("since", "until"):
        return _harmless(value)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value / 1000)) if value else ""


def _harmless(value: Any) -> Any:
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else value


def print_lessons(lessons: Sequence[Lesson]) -> None:
    """When machines are started and stopped."""
    from essaim.cli.output import table
    from essaim.plan.timetable import shown_times

    days = said("days.short").split("|")
    if not lessons:
        tell("lessons.none")
        return
    rows = []
    for each in lessons:
        at = time.localtime(each.next_at / 1000)
        due = f"{days[at.tm_wday]} {time.strftime('%Y-%m-%d %H:%M', at)}"
        when = shown_times(each.times, days, said("days.every"), spoken())
        rows.append((each.roster, said(f"lessons.{each.verb}"), when, due))
    sys.stdout.write(table(rows, said("lessons.headings").split("|")) + "\n")


def print_codes(found: Sequence[tuple[Student, str]], *, as_csv: bool) -> None:
    """The codes of students, with what is needed to send them."""
    from essaim.cli.output import table

    rows = [(who.login, who.person.name, who.person.mail, code) for who, code in found]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("login", "name", "mail", "code"))
        writer.writerows([_harmless(cell) for cell in row] for row in rows)
        return
    sys.stdout.write(table(rows, said("students.codes_headings").split("|")) + "\n")
