"""`students remove` and `students retire`: machines go, also those that are lost already."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from essaim.cli.asking import agree
from essaim.cli.carrying import interruptible
from essaim.cli.classes import RosterName, roster_control_plane
from essaim.cli.lost_machines import check_site, forget_roster
from essaim.cli.site_watch import watched
from essaim.cli.tongue import said, tell

Forget = Annotated[
    bool,
    typer.Option(
        "--forget", help="Their site never comes back: forget them without asking it; see below."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def remove(roster: RosterName, forget: Forget = False, yes: Yes = False) -> None:
    """Take a whole roster away at once: machines, disks, names, desktops, addresses.

    When its site does not answer, nothing is done and the exit code is 3: the same command goes
    on when it does.  For a site that is gone for good, [bold]--forget[/bold] takes names,
    DHCP reservations and desktops away as far as their servers answer, forgets the machines, and
    lists what may be left at the site.
    """
    from essaim.cli.students_show import follow
    from essaim.usecases import classes as use
    from essaim.usecases import rosters

    with roster_control_plane() as control:
        site = rosters.stored(control, roster).site
        if forget:
            forget_roster(control, roster, [], yes=yes)
            return
        check_site(control, site, f"essaim students remove {roster}")
        agree(said("students.ask.remove", roster=roster), yes=yes)
        rosters.clear(control, roster)
        with interruptible(control), watched(control, site) as state:
            run = use.remove(control, roster)
            code = follow(control, roster, run) if run else 0
        if run and not code:
            use.remove(control, roster)
        if not code:
            tell("students.removed", roster=roster)
        if state.lost:
            tell("site.never", command=f"essaim students remove {roster}")
    sys.exit(state.code(code))


def retire(
    roster: RosterName,
    logins: Annotated[list[str], typer.Argument(metavar="LOGIN", help="Whose; one or more.")],
    forget: Forget = False,
    yes: Yes = False,
) -> None:
    """Stop machines and take them out of reach; destroyed when the roster's grace is over.

    While a student is still on the roster, the next [bold]apply[/bold] gives the machine back.

    With [bold]--forget[/bold], for machines whose node or site is lost for good: names and
    desktops are taken away as far as servers answer; the next [bold]apply[/bold] makes new ones.
    """
    from essaim.cli.students import act_on
    from essaim.usecases import rosters

    if forget:
        with roster_control_plane() as control:
            forget_roster(control, roster, logins, yes=yes)
        return
    if not yes:
        with roster_control_plane() as control:
            grace = rosters.stored(control, roster).grace
        question = "students.ask.retire" if grace > 0 else "students.ask.retire_now"
        agree(said(question, count=len(logins)), yes=yes)
    act_on("retire", roster, logins)
