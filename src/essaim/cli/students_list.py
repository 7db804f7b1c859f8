"""`students list` and `students show`: who has what, what failed and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.classes import Csv, RosterName
from essaim.cli.output import print_json
from essaim.cli.stacks import Json, control_plane
from essaim.cli.tongue import said, tell

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.machines import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How people, or programs, are told who has what."""

    as_csv: bool
    as_json: bool
    short: bool = False  #: only how many stand how; programs are always told all
    only: Collection[str] | None = None  #: these logins

    @property
    def for_programs(self) -> bool:
        """Whether a program reads it."""
        return self.as_csv or self.as_json


def print_roster(
    control: App, name: str, how: Shown, seen: Mapping[str, Observed] | None = None
) -> None:
    """Print who has what, for people or for programs."""
    from essaim.cli.students_show import print_counts, print_csv, print_table
    from essaim.usecases import rosters
    from essaim.usecases import students as use

    rows = use.table(control, name, seen) if control.rosters.get(name) else []
    if how.only is not None:
        rows = [row for row in rows if row.login in how.only]
    if how.as_json:
        print_json(rows)
    elif how.as_csv:
        print_csv(rows)
    elif how.short:
        print_counts(rows)
    else:
        print_table(rows)
        if any(row.state == "ready" and not row.power for row in rows):
            tell("site.power_unknown", roster=name, site=rosters.stored(control, name).site.name)


def _print_rosters(control: App, *, as_json: bool) -> None:
    from essaim.cli.output import table
    from essaim.plan.rosters import tally

    found = {
        name: tally(control.rosters.students(name).values()) for name in control.rosters.names()
    }
    if as_json:
        print_json(found)
        return
    if not found:
        tell("students.no_rosters")
        return
    rows = [(name, *(str(count) for count in counts.values())) for name, counts in found.items()]
    sys.stdout.write(table(rows, said("students.rosters_headings").split("|")) + "\n")


def list_students(
    roster: Annotated[
        str, typer.Argument(metavar="ROSTER", help="All rosters, in short, when absent.")
    ] = "",
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """Show who has what, what failed and what to do about it; or the rosters there are."""
    from essaim.usecases import rosters

    with control_plane() as control:
        if roster:
            rosters.stored(control, roster)
            print_roster(control, roster, Shown(as_csv=as_csv, as_json=as_json))
            return
        _print_rosters(control, as_json=as_json)


def show(
    roster: RosterName,
    login: Annotated[str, typer.Argument(metavar="LOGIN")],
    as_json: Json = False,
) -> None:
    """Show one student's machine: what it is doing, what failed, what to do."""
    from essaim.usecases import students as use

    with control_plane() as control:
        use.find(control, roster, login)
        (found,) = [row for row in use.table(control, roster) if row.login == login]
    if as_json:
        print_json(found)
        return
    from essaim.cli.students_show import cells, columns

    for heading, cell in zip(columns(), cells(found), strict=True):
        sys.stdout.write(f"{heading.capitalize():<15} {cell or '-'}\n")
