"""`students`: a machine for everybody of a roster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli import classes, students_list, students_remove
from essaim.cli.asking import agree
from essaim.cli.carrying import INTERRUPTED, interruptible
from essaim.cli.classes import Csv, Logins, RosterName, roster_control_plane
from essaim.cli.lost_machines import check_site
from essaim.cli.output import say
from essaim.cli.site_watch import AWAY, watched
from essaim.cli.stacks import Json
from essaim.cli.students_list import Shown, print_roster
from essaim.cli.tongue import said, tell

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.config.rosters import Roster
    from essaim.model.errors import EssaimError
    from essaim.model.school import Person
    from essaim.usecases.rosters import Planned

app = typer.Typer(
    help="""Give everybody of a roster a machine, and look after them.

    [bold]essaim students apply promo.csv --site pve --template debian-gui[/bold]

    A roster is a CSV file with the columns login, name, mail, group, uid, home, of
    which only login must be there; or a group of the directory. Beside promo.csv,
    promo.yaml may say what the machines are like. Safe to repeat: who is new gets a
    machine, who is gone loses theirs after a time of grace, the others are left alone.""",
    no_args_is_help=True,
)

SomeLogins = Annotated[list[str], typer.Argument(metavar="LOGIN", help="Whose; one or more.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
def apply(
    where: Annotated[
        str, typer.Argument(metavar="ROSTER.csv", help="The roster; its settings lie beside it.")
    ] = "",
    group: Annotated[
        str, typer.Option(metavar="DN", help="A group of the directory instead of a file.")
    ] = "",
    site: Annotated[str, typer.Option(help="Where machines are made.")] = "",
    template: Annotated[str, typer.Option(help="What they are made from: an image.")] = "",
    name: Annotated[str, typer.Option(help="What to call the roster; else as its file.")] = "",
    size: Annotated[str, typer.Option(help="How large: small, medium …")] = "",
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="From retired to destroyed, this once: 12h, 0.")
    ] = "",
    reset: Annotated[
        bool, typer.Option("--reset", help="Make anew what was made from another image.")
    ] = False,
    most: Annotated[
        bool, typer.Option("--most", help="Yes, retire more than half of them.")
    ] = False,
    dry: Annotated[bool, typer.Option("--plan", help="Only say what would be done.")] = False,
    yes: Yes = False,
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """Make the machines of a roster what they should be, and print who has what.

    [bold]essaim students apply promo.csv[/bold]

    [bold]essaim students apply --group cn=promo,ou=groups,dc=example,dc=org --name promo[/bold]
    """
    from essaim.config.people import read_people
    from essaim.config.rosters import compose_roster, read_grace
    from essaim.usecases import rosters as use
    from essaim.usecases.classes import earlier_settings

    if not where and not (group and name):
        raise _wrong("students.name_one")
    options = {"site": site, "image": template, "name": name, "size": size, "group": group}
    how = Shown(as_csv=as_csv, as_json=as_json)
    within = read_grace(grace) if grace else None
    with roster_control_plane() as control:
        remembered = partial(earlier_settings, control)
        roster = compose_roster(where or f"{name}.csv", options, remembered)
        people = _people(control, roster, where, read_people)
        if not people and control.rosters.get(roster.name) is None:
            hint = said("students.names_nobody_hint")
            raise _wrong("students.names_nobody", hint=hint, source=where or group)
        check_site(control, roster.site)
        use.clear(control, roster.name)
        planned = use.plan(control, roster, people, reset=reset, grace=within)
        _tell_changed(remembered(roster.name), roster)
        _show(planned)
        if dry or not planned.decided.changes:
            _keep(control, planned, dry=dry)
            print_roster(control, roster.name, replace(how, short=True), planned.seen.machines)
            return
        _confirm(planned, yes=yes, most=most)
        code = _carry_out(control, planned)
        print_roster(control, roster.name, replace(how, short=code in (INTERRUPTED, AWAY)))
    sys.exit(code)


def _tell_changed(before: Mapping[str, Any], roster: Roster) -> None:
    """Say what is another than at the last apply, so that nobody is surprised."""
    from essaim.config.rosters import settings_of

    for key, value in settings_of(roster).items():
        if before and before[key] != value:
            what = said(f"students.setting.{key}")
            old, new = _plainly(before[key]), _plainly(value)
            tell("students.settings_changed", roster=roster.name, what=what, before=old, after=new)


def _plainly(value: Any) -> str:
    """A setting as people write it; a size is several numbers."""
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value


def _people(control: App, roster: Roster, where: str, read_people: Any) -> list[Person]:
    from essaim.usecases import rosters as use

    if roster.group and not (where and Path(where).is_file()):
        return use.members(control, roster, roster.group)
    found: list[Person] = read_people(Path(where))
    return found


app.command("list")(students_list.list_students)
app.command()(students_list.show)


@app.command()
def retry(
    roster: RosterName, logins: Logins = None, as_csv: Csv = False, as_json: Json = False
) -> None:
    """Try again what failed, and nothing else.

    [bold]essaim students retry promo[/bold]
    """
    from essaim.usecases import rosters as use

    with roster_control_plane() as control:
        check_site(control, use.stored(control, roster).site)
        use.clear(control, roster)
        planned = use.retry(control, roster, logins or ())
        how = Shown(as_csv=as_csv, as_json=as_json, only=planned.known.keys())
        if not planned.decided.changes:
            tell("students.nothing_to_retry", roster=roster)
            if how.for_programs:
                print_roster(control, roster, how)
            return
        _show(planned)
        code = _carry_out(control, planned)
        print_roster(control, roster, replace(how, short=code in (INTERRUPTED, AWAY)))
    sys.exit(code)


@app.command()
def start(roster: RosterName, logins: Logins = None) -> None:
    """Start machines: as many at once as the site has slots for.

    [bold]essaim students start promo[/bold], or [bold]essaim students start promo alice bob[/bold]
    """
    act_on("start", roster, logins)


@app.command()
def stop(roster: RosterName, logins: Logins = None) -> None:
    """Stop machines; their disks stay."""
    act_on("stop", roster, logins)


@app.command()
def reset(roster: RosterName, logins: SomeLogins, yes: Yes = False) -> None:
    """Make machines anew from their image: address, name and desktop stay, the disk is lost."""
    agree(said("students.ask.reset", count=len(logins)), yes=yes)
    act_on("reset", roster, logins)


@app.command()
def snapshot(
    roster: RosterName,
    logins: Logins = None,
    label: Annotated[str, typer.Option(help="A word of yours; else the time.")] = "",
) -> None:
    """Keep the disks as they are now, of everybody or of those named.

    [bold]essaim students snapshot promo --label before-exam[/bold]
    """
    from essaim.usecases.seats import LABEL, new_label

    label = label or new_label()
    if not LABEL.fullmatch(label):
        raise _wrong("seat.label")
    act_on("snapshot", roster, logins, label=label)
    tell("students.go_back", roster=roster, label=label)


@app.command()
def restore(
    roster: RosterName,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="As `snapshot` was given.")],
    logins: Logins = None,
    yes: Yes = False,
) -> None:
    """Go back to a snapshot: what was written since is lost; the machines are started."""
    agree(said("students.ask.restore", label=label), yes=yes)
    act_on("restore", roster, logins, label=label)


def act_on(verb: str, roster: str, logins: list[str] | None, *, label: str = "") -> None:
    """Do something to machines of a roster, before a person's eyes."""
    from essaim.cli.students_show import follow, tell_failures
    from essaim.usecases import classes as use
    from essaim.usecases import rosters

    with roster_control_plane() as control:
        site = rosters.stored(control, roster).site
        check_site(control, site)
        if label:
            _check_keeps(control, roster)
        rosters.clear(control, roster)
        with interruptible(control), watched(control, site) as state:
            run = use.power(control, roster, verb, logins or (), label=label)
            code = follow(control, roster, run) if run else 0
        if not run:
            tell("students.nobody", roster=roster, verb=verb)
        if code:
            if not state.lost:
                tell_failures(control, roster, run)
            sys.exit(state.code(code))


def _check_keeps(control: App, roster: str) -> None:
    """See that there can be snapshots, before each machine says that there cannot."""
    from essaim.model.errors import RejectedError
    from essaim.model.machines import Snapshots
    from essaim.usecases import rosters

    site = rosters.stored(control, roster).site
    if not isinstance(control.driver(site), Snapshots):
        raise RejectedError(
            said("students.keeps_none", roster=roster, driver=site.driver),
            hint=said("students.keeps_none_hint"),
        )


def _show(planned: Planned) -> None:
    from essaim.cli.students_show import plan_lines

    for line in plan_lines(planned):
        say(line)


def _confirm(planned: Planned, *, yes: bool, most: bool) -> None:
    if planned.drastic and not most:
        raise _wrong("students.most", hint=said("students.most_hint"))
    if any(change.destroys_disk for change in planned.decided.changes):
        agree(said("students.ask.lost"), yes=yes)


def _wrong(key: str, hint: str = "", **fields: str) -> EssaimError:
    from essaim.model.errors import InvalidError, Problem

    return InvalidError([Problem(said(key, **fields), hint=hint)])


def _keep(control: App, planned: Planned, *, dry: bool) -> None:
    from essaim.usecases import rosters as use

    if not dry:
        use.apply(control, planned)  # how it is described may have changed, though no machine did
        tell("students.unchanged", roster=planned.roster.name)


def _carry_out(control: App, planned: Planned) -> int:
    from essaim.cli.students_show import follow
    from essaim.usecases import rosters as use

    name, site = planned.roster.name, planned.roster.site
    # Interruptible from the first moment on: to begin with 600 takes a while.
    with interruptible(control), watched(control, site) as state:
        code = follow(control, name, use.apply(control, planned))
    return state.code(code)


for _command in (
    students_remove.retire,
    students_remove.remove,
    classes.schedule,
    classes.invite,
    classes.teachers,
):
    app.command()(_command)
