"""`students`: a machine for everybody of a roster."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli import classes
from essaim.cli.asking import agree
from essaim.cli.carrying import INTERRUPTED, interruptible
from essaim.cli.classes import Csv, Logins, RosterName
from essaim.cli.output import print_json, say
from essaim.cli.stacks import Json
from essaim.cli.stacks import control_plane as any_control_plane

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.config.rosters import Roster
    from essaim.model.machines import Observed
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


#: Threads for a roster of any size: to wait for a hypervisor takes none.
THREADS = 16


@contextmanager
def control_plane() -> Iterator[App]:
    """Open the control plane for a command over many machines."""
    with any_control_plane() as control:
        control.threads = THREADS
        yield control


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
    from essaim.model.errors import InvalidError, Problem
    from essaim.usecases import rosters as use

    if not where and not (group and name):
        raise typer.BadParameter("name a ROSTER.csv, or --group together with --name")
    said = {"site": site, "image": template, "name": name, "size": size, "group": group}
    how = Shown(as_csv=as_csv, as_json=as_json)
    roster = compose_roster(where or f"{name}.csv", said)
    within = read_grace(grace) if grace else None
    with control_plane() as control:
        people = _people(control, roster, where, read_people)
        if not people and control.rosters.get(roster.name) is None:
            what = f"{where or group} names nobody"
            raise InvalidError([Problem(what, hint="a roster has a line, or a member, for each")])
        use.clear(control, roster.name)
        planned = use.plan(control, roster, people, reset=reset, grace=within)
        _show(planned)
        if dry or not planned.decided.changes:
            _keep(control, planned, dry=dry)
            _print(control, roster.name, replace(how, short=True), planned.seen.machines)
            return
        _confirm(planned, yes=yes, most=most)
        code = _carry_out(control, planned)
        _print(control, roster.name, replace(how, short=code == INTERRUPTED))
    sys.exit(code)


def _people(control: App, roster: Roster, where: str, read_people: Any) -> list[Person]:
    from essaim.usecases import rosters as use

    if roster.group and not (where and Path(where).is_file()):
        return use.members(control, roster, roster.group)
    found: list[Person] = read_people(Path(where))
    return found


@app.command("list")
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
            _print(control, roster, Shown(as_csv=as_csv, as_json=as_json))
            return
        _print_rosters(control, as_json=as_json)


@app.command()
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
    from essaim.cli.students_show import COLUMNS, cells

    for heading, cell in zip(COLUMNS, cells(found), strict=True):
        sys.stdout.write(f"{heading.capitalize():<12} {cell or '-'}\n")


@app.command()
def retry(
    roster: RosterName, logins: Logins = None, as_csv: Csv = False, as_json: Json = False
) -> None:
    """Try again what failed, and nothing else.

    [bold]essaim students retry promo[/bold]
    """
    from essaim.usecases import rosters as use

    with control_plane() as control:
        use.clear(control, roster)
        planned = use.retry(control, roster, logins or ())
        how = Shown(as_csv=as_csv, as_json=as_json, only=planned.known.keys())
        if not planned.decided.changes:
            say(f"{roster}: nothing to try again")
            if how.for_programs:
                _print(control, roster, how)
            return
        _show(planned)
        code = _carry_out(control, planned)
        _print(control, roster, replace(how, short=code == INTERRUPTED))
    sys.exit(code)


@app.command()
def start(roster: RosterName, logins: Logins = None) -> None:
    """Start machines: as many at once as the site has slots for.

    [bold]essaim students start promo[/bold], or [bold]essaim students start promo alice bob[/bold]
    """
    _do("start", roster, logins)


@app.command()
def stop(roster: RosterName, logins: Logins = None) -> None:
    """Stop machines; their disks stay."""
    _do("stop", roster, logins)


@app.command()
def reset(roster: RosterName, logins: SomeLogins, yes: Yes = False) -> None:
    """Make machines anew from their image: address, name and desktop stay, the disk is lost."""
    agree(f"The disks of {len(logins)} machine(s) are lost. Go on?", yes=yes)
    _do("reset", roster, logins)


@app.command()
def retire(roster: RosterName, logins: SomeLogins, yes: Yes = False) -> None:
    """Stop machines and take them out of reach; destroyed when the roster's grace is over.

    While a student is still on the roster, the next [bold]apply[/bold] gives the machine back.
    """
    agree(f"{len(logins)} machine(s) are stopped and withdrawn. Go on?", yes=yes)
    _do("retire", roster, logins)


@app.command()
def snapshot(
    roster: RosterName,
    logins: Logins = None,
    label: Annotated[str, typer.Option(help="A word of yours; else the time.")] = "",
) -> None:
    """Keep the disks as they are now, of everybody or of those named.

    [bold]essaim students snapshot promo --label before-exam[/bold]
    """
    from essaim.model.words import words
    from essaim.usecases.seats import LABEL, new_label

    label = label or new_label()
    if not LABEL.fullmatch(label):
        raise typer.BadParameter(words("seat.label", "en"))
    _do("snapshot", roster, logins, label=label)
    say(f"go back with: essaim students restore {roster} {label} [LOGIN…]")


@app.command()
def restore(
    roster: RosterName,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="As `snapshot` was given.")],
    logins: Logins = None,
    yes: Yes = False,
) -> None:
    """Go back to a snapshot: what was written since is lost; the machines are started."""
    agree(f"What was written since {label} is lost. Go on?", yes=yes)
    _do("restore", roster, logins, label=label)


@app.command()
def remove(roster: RosterName, yes: Yes = False) -> None:
    """Take a whole roster away at once: machines, disks, names, desktops, addresses."""
    from essaim.cli.students_show import follow
    from essaim.usecases import classes as use
    from essaim.usecases import rosters

    agree(f"All machines of {roster} and their disks are lost. Go on?", yes=yes)
    with control_plane() as control:
        rosters.clear(control, roster)
        with interruptible(control):
            run = use.remove(control, roster)
            code = follow(control, roster, run) if run else 0
        if run and not code:
            use.remove(control, roster)
        if not code:
            say(f"{roster}: nothing is left of it")
    sys.exit(code)


def _do(verb: str, roster: str, logins: list[str] | None, *, label: str = "") -> None:
    from essaim.cli.students_show import follow, tell_failures
    from essaim.usecases import classes as use
    from essaim.usecases import rosters

    with control_plane() as control:
        if label:
            _check_keeps(control, roster)
        rosters.clear(control, roster)
        with interruptible(control):
            run = use.power(control, roster, verb, logins or (), label=label)
            code = follow(control, roster, run) if run else 0
        if not run:
            say(f"{roster}: nobody there to {verb}")
        if code:
            tell_failures(control, roster, run)
            sys.exit(code)


def _check_keeps(control: App, roster: str) -> None:
    """See that there can be snapshots, before each machine says that there cannot."""
    from essaim.model.errors import RejectedError
    from essaim.model.machines import Snapshots
    from essaim.usecases import rosters

    site = rosters.stored(control, roster).site
    if not isinstance(control.driver(site), Snapshots):
        raise RejectedError(
            f"{roster}: {site.driver} machines keep no snapshots",
            hint="those of a Proxmox site do",
        )


def _show(planned: Planned) -> None:
    from essaim.cli.students_show import plan_lines

    for line in plan_lines(planned):
        say(line)


def _confirm(planned: Planned, *, yes: bool, most: bool) -> None:
    if planned.drastic and not most:
        raise typer.BadParameter(
            "more than half of the machines would be retired: is the roster whole? "
            "say --most if it is"
        )
    losing = planned.decided.of("remove") + planned.decided.of("reset")
    if losing:
        agree("The disks of these machines are lost. Go on?", yes=yes)


def _keep(control: App, planned: Planned, *, dry: bool) -> None:
    from essaim.usecases import rosters as use

    if not dry:
        use.apply(control, planned)  # how it is described may have changed, though no machine did
        say(f"{planned.roster.name}: nothing to change")


def _carry_out(control: App, planned: Planned) -> int:
    from essaim.cli.students_show import follow
    from essaim.usecases import rosters as use

    with interruptible(control):  # to begin with 600 takes a moment
        return follow(control, planned.roster.name, use.apply(control, planned))


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


def _print(control: App, name: str, how: Shown, seen: Mapping[str, Observed] | None = None) -> None:
    from essaim.cli.students_show import print_counts, print_csv, print_table
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
        say("no rosters yet; make one with: essaim students apply FILE.csv")
        return
    rows = [(name, *(str(count) for count in counts.values())) for name, counts in found.items()]
    headings = ("ROSTER", *(each.value.upper() for each in next(iter(found.values()))))
    sys.stdout.write(table(rows, headings) + "\n")


for _command in (classes.schedule, classes.invite, classes.teachers):
    app.command()(_command)
