"""`students schedule`, `invite`, `teachers`: a class beside its machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.output import print_json
from essaim.cli.stacks import Json, control_plane
from essaim.cli.tongue import tell

if TYPE_CHECKING:
    from essaim.bootstrap import App

RosterName = Annotated[str, typer.Argument(metavar="ROSTER", help="As `students list` names it.")]
Logins = Annotated[
    list[str] | None, typer.Argument(metavar="LOGIN", help="Just these; else everybody.")
]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")]


#: Threads for a roster of any size: to wait for a hypervisor takes none.
THREADS = 16


@contextmanager
def roster_control_plane() -> Iterator[App]:
    """Open the control plane for a command over many machines."""
    with control_plane() as control:
        control.threads = THREADS
        yield control


def schedule(
    roster: RosterName,
    times: Annotated[
        str, typer.Argument(metavar="TIMES", help='When to start: "mon-fri 07:45", "lundi 8h".')
    ] = "",
    stop: Annotated[str, typer.Option(metavar="TIMES", help="When to stop: 18:30.")] = "",
    off: Annotated[
        bool, typer.Option("--off", help="Start and stop nothing by the clock.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have machines started before class, staggered by the site's slots, and stopped after it.

    [bold]essaim students schedule promo "mon-fri 07:45" --stop 18:30[/bold]

    It is done by [bold]essaim serve[/bold] or [bold]essaim controller[/bold], in its local time;
    what was missed by more than half an hour is left out.
    """
    from essaim.cli.students_show import print_lessons
    from essaim.usecases import classes as use
    from essaim.usecases import rosters

    with control_plane() as control:
        rosters.stored(control, roster)
        if off:
            use.unschedule(control, roster)
        if times:
            use.schedule(control, roster, "start", times)
        if stop:
            use.schedule(control, roster, "stop", stop)
        found = control.classes.lessons(roster)
        served = use.clock_runs(control)
    if as_json:
        print_json(found)
    else:
        print_lessons(found)
    if found and not served:
        tell("lessons.no_controller")


def invite(
    roster: RosterName, logins: Logins = None, as_csv: Csv = False, as_json: Json = False
) -> None:
    """Make codes with which students claim their machines; shown this once.

    A name alone proves nothing. Give each student their code, by mail or on paper; they type
    [bold]essaim signup NAME --invite CODE[/bold], or with an account [bold]essaim mine claim
    CODE[/bold], once.
    """
    from essaim.cli.students_show import print_codes
    from essaim.usecases import classes as use

    with control_plane() as control:
        found = use.invite(control, roster, logins or ())
    if as_json:
        print_json([{"login": who.login, "mail": who.person.mail, "code": c} for who, c in found])
    else:
        print_codes(found, as_csv=as_csv)


def teachers(
    roster: RosterName,
    add: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Let them.")] = None,
    drop: Annotated[list[str] | None, typer.Option(metavar="NAME", help="No more.")] = None,
    as_json: Json = False,
) -> None:
    """Say who may see and act on all machines of a roster: accounts of this control plane.

    [bold]essaim students teachers promo --add turing[/bold], whose account exists; an id (u-…)
    serves as well. [bold]essaim users invite --teaches promo[/bold] is for those without one. Then
    [bold]essaim mine class promo[/bold] shows them the class.
    """
    from essaim.usecases import classes as use

    with control_plane() as control:
        for name in add or ():
            use.set_teacher(control, roster, name)
        for name in drop or ():
            use.set_teacher(control, roster, name, teaches=False)
        found = use.teachers(control, roster)
    if as_json:
        print_json(found)
        return
    sys.stdout.write("".join(f"{name}\n" for name in found))
