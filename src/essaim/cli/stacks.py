"""`up`, `plan`, `down`, `status`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.carrying import carry_out, end, show_commands, show_plan
from essaim.cli.output import inform, print_json, say, table
from essaim.cli.ssh_config import refresh_stacks
from essaim.cli.terminal import Verbosity, choose, fold, verbosity

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.config.compose import Composed

Where = Annotated[
    str, typer.Argument(metavar="STACK", help="A directory with stack.yaml, or a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Hydra overrides: nodes=8 scheduler=oar +x=1 ~y"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing machines.")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait when somebody else works on the stack.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Apply every role once more, even where nothing changed.")
]
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Look into the machines too: dead daemons, files edited by hand."),
]
Locked = Annotated[
    bool, typer.Option("--locked", help="Refuse what is not as in essaim.lock, in words.")
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=choose(Verbosity.QUIET), help="Print only results and errors."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=choose(Verbosity.VERBOSE),
        help="Print each step and each command as it happens.",
    ),
]
Sweep = Annotated[
    bool, typer.Option("--multirun", "-m", help="One stack for each value: scheduler=slurm,oar")
]


def up(
    where: Annotated[
        str | None,
        typer.Argument(metavar="STACK", help="A directory with stack.yaml, or a YAML file."),
    ] = None,
    overrides: Overrides = None,
    stored: Annotated[
        str, typer.Option("--plan", metavar="ID", help="Apply this stored plan, unchanged.")
    ] = "",
    multirun: Sweep = False,
    locked: Locked = False,
    again: Again = False,
    deep: Deep = False,
    yes: Yes = False,
    wait: Wait = True,
    as_json: Json = False,
    _quiet: Quiet = False,
    _verbose: Verbose = False,
) -> None:
    """Make the machines a stack describes, or change those there are until they match.

    Safe to repeat: what is already right is left alone, what was interrupted goes on.
    """
    from essaim.usecases import stacks as use

    if (where is None) == (not stored) or (locked and (stored or multirun)):
        raise typer.BadParameter(
            "give a STACK to bring up, or --plan ID; --locked is for one STACK"
        )
    outcomes = []
    with control_plane() as app:
        if where is None:
            ready = use.read_plan(app, stored)
            name = ready.plan.stack
            outcomes.append(carry_out(app, name, lambda: ready, yes=yes, wait=False, hints=True))
        else:
            outcomes += [
                _bring_up(
                    app, where, each, locked=locked, again=again, deep=deep, yes=yes, wait=wait
                )
                for each in _sweep(where, overrides or [], multirun=multirun)
            ]
        refresh_stacks(app)
    if as_json:
        print_json(outcomes if multirun else outcomes[0])
    sys.exit(max(outcome["exit_code"] for outcome in outcomes))


def plan(
    where: Where,
    overrides: Overrides = None,
    multirun: Sweep = False,
    again: Again = False,
    deep: Deep = False,
    as_json: Json = False,
) -> None:
    """Say what `up` would do, why, and about how long it would take.  Changes nothing."""
    from essaim.config.compose import compose
    from essaim.plan.serial import plan_to_json
    from essaim.usecases import stacks as use

    found: list[dict[str, Any]] = []
    with control_plane() as app:
        for each in _sweep(where, overrides or [], multirun=multirun):
            stored = use.make_plan(app, compose(where, each), again=again, deep=deep)
            found.append({"id": stored.id, **plan_to_json(stored.plan)})
            if not as_json:
                show_plan(stored)
                if stored.plan.changes:
                    say(f"apply exactly this with: essaim up --plan {stored.id}")
    if as_json:
        print_json(found if multirun else found[0])


def down(
    name: Annotated[str, typer.Argument(metavar="STACK", help="The stack's name, as in `status`.")],
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Its site never comes back: forget its machines without asking it."
        ),
    ] = False,
    yes: Yes = False,
    wait: Wait = True,
    as_json: Json = False,
    _quiet: Quiet = False,
    _verbose: Verbose = False,
) -> None:
    """Remove a stack: its machines, their disks and their network.  The journal stays.

    When its site does not answer, nothing is done and the exit code is 3.  For a site that is
    gone for good, [bold]--forget[/bold] forgets the machines and lists what may be left there.
    """
    from essaim.cli.lost_machines import check_site, forget_stack
    from essaim.usecases import stacks as use

    with control_plane() as app:
        if forget:
            end(forget_stack(app, name, yes=yes), as_json=as_json)
        check_site(app, use.stored_stack(app, name)[0].site, f"essaim down {name}")
        plan_it = partial(use.make_down_plan, app, name)
        outcome = carry_out(app, name, plan_it, yes=yes, wait=wait)
        refresh_stacks(app)
    end(outcome, as_json=as_json)


def status(
    name: Annotated[str, typer.Argument(metavar="[STACK]", help="All stacks when absent.")] = "",
    as_json: Json = False,
) -> None:
    """Show stacks and their machines as they are now."""
    from essaim.usecases import stacks as use

    with control_plane() as app:
        names = [name] if name else app.stacks.list_stacks()
        found = [use.status(app, each) for each in names]
    if as_json:
        print_json(found)
        return
    if not found:
        say("no stacks yet; make one with: essaim up examples/bare")
    for stack in found:
        _show_status(stack)


# -- how it is done ---------------------------------------------------------------------------


@contextmanager
def control_plane() -> Iterator[App]:
    """Open the control plane for one command and close it properly."""
    from essaim.bootstrap import App

    app = App()
    try:
        if verbosity() is Verbosity.VERBOSE:
            show_commands(app)
        yield app
    finally:
        app.close()


def _sweep(where: str, overrides: list[str], *, multirun: bool) -> list[tuple[str, ...]]:
    if not multirun:
        return [tuple(overrides)]
    from essaim.config.compose import sweep

    return sweep(where, overrides)


def _bring_up(
    app: App,
    where: str,
    overrides: tuple[str, ...],
    *,
    locked: bool,
    again: bool,
    deep: bool,
    yes: bool,
    wait: bool,
) -> dict[str, Any]:
    from essaim.config.compose import compose
    from essaim.usecases import stacks as use

    composed = _compose_locked(app, where, overrides) if locked else compose(where, overrides)
    plan_it = partial(use.make_plan, app, composed, again=again, deep=deep)
    return carry_out(app, composed.stack.name, plan_it, yes=yes, wait=wait, hints=True)


def _compose_locked(app: App, where: str, overrides: tuple[str, ...]) -> Composed:
    """Compose a stack as it was locked; what is not is refused."""
    from essaim.cli.locks import hold_to_lock, locked_overrides
    from essaim.config.compose import compose

    composed = compose(where, overrides or locked_overrides(where))
    hold_to_lock(app, composed)
    return composed


_POWER = {"on": "green", "off": "yellow", "absent": "red"}


def power_style(heading: str, cell: str) -> str:
    """Colour the power of machines in a table."""
    return _POWER.get(cell, "") if heading == "POWER" else ""


def _show_status(stack: Any) -> None:
    run = stack.run
    last = f", last run {run.id} {run.state.value}" if run else ""
    for line in fold(f"{stack.name} on {stack.site} ({stack.source}{last})", hanging="  "):
        inform(line)
    rows = [
        (m.name, m.power, m.address, " ".join(m.roles), " ".join(m.pending) or "-")
        for m in stack.machines
    ]
    headings = ("MACHINE", "POWER", "ADDRESS", "ROLES", "PENDING")
    sys.stdout.write(table(rows, headings, least=("ROLES",), style=power_style) + "\n")
    for note in stack.notes:
        for line in fold(f"· {note}", indent="  "):
            say(line)
