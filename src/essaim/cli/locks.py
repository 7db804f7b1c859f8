"""`lock` and `verify`: what a cluster is made of, written down, and held against what runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.output import print_json, say
from essaim.cli.progress import Notes
from essaim.cli.stacks import Json, Overrides, Where, control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from essaim.bootstrap import App
    from essaim.config.compose import Composed
    from essaim.plan.lock import Lock
    from essaim.plan.lock_compare import Difference
    from essaim.usecases.verifying import NodeReport, Report

DIFFERENT, CANNOT = 1, 3

File = Annotated[
    str,
    typer.Option("--file", metavar="FILE", help="The lock; essaim.lock beside the stack's file."),
]


def lock(
    where: Where,
    overrides: Overrides = None,
    file: File = "",
    build: Annotated[
        bool, typer.Option("--build/--no-build", help="Build images that are missing.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Write down all that makes a stack what it is: essaim.lock, to be kept beside it.

    Files, configuration, images with their packages, what each machine is told and
    what its roles put there.  No secret is in it.  [bold]essaim up STACK --locked[/bold]
    raises exactly that, [bold]essaim verify STACK[/bold] proves a running cluster.
    """
    from essaim.config.compose import compose
    from essaim.model.errors import SetupError
    from essaim.usecases import locking as use

    composed = compose(where, overrides or [])
    path = _path(composed, file)
    before = _before(path)
    with control_plane() as app:
        made = use.make_lock(app, composed, Notes() if build else None, whole=True)
    if missing := use.missing_images(made):
        raise SetupError(
            f"{', '.join(missing)}: not built yet, so nothing is known of what is in there",
            hint="leave --no-build out, or build first: essaim image build NAME",
        )
    use.write_lock(made, path)
    changes = _changes(before, made)
    if as_json:
        print_json({"file": str(path), "stack": made.stack, "changes": changes})
        return
    for line in changes or []:
        say(f"  ~ {line}")
    nodes, images = len(made.nodes), len(made.images)
    said = {None: "", 0: "; nothing has changed"}.get(None if changes is None else len(changes))
    say(
        f"{path}: {_count(nodes, 'machine')}, {_count(images, 'image')}, "
        f"{_count(len(made.files), 'file')}{said or ''}"
    )


def verify(
    where: Where, overrides: Overrides = None, file: File = "", as_json: Json = False
) -> None:
    """Prove a running cluster against its lock, machine by machine.  Changes nothing.

    What is described now is compared with the lock, and then each machine: its image,
    name, address and packages, every file its roles put there, whether their steps
    still hold and their work is done.

    Without KEY=VALUE the stack is described as it was locked; with them, as they say.

    Exit codes: 0 identical, 1 different, 3 it cannot be told.
    """
    from essaim.cli import report as explain
    from essaim.config.compose import compose
    from essaim.model.errors import EssaimError
    from essaim.usecases import locking, verifying

    with control_plane() as app:
        where = _place(app, where)
        path = Path(file) if file else locking.lock_of(where)
        known = locking.read_lock(path)
        composed = compose(where, overrides or known.overrides)
        try:
            found = verifying.verify(app, known, composed)
        except EssaimError as error:
            # That a site cannot be asked says nothing about what is there.
            explain(error)
            sys.exit(error.exit_code if error.exit_code > DIFFERENT else CANNOT)
    if as_json:
        print_json(_document(found))
    else:
        lines = [*_lines(found, known), *verifying.mending(found, shlex.quote(where))]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        for note in found.notes:
            say(f"  · {note}")
    code = {"identical": 0, "different": DIFFERENT}.get(found.verdict, CANNOT)
    sys.exit(code)


def hold_to_lock(app: App, composed: Composed) -> None:
    """Refuse a stack that is not what its lock says."""
    from essaim.usecases import locking as use

    use.hold_to(app, composed, use.read_lock(_path(composed, "")), Notes())


def locked_overrides(where: str) -> tuple[str, ...]:
    """The arguments a stack was locked with, for who raises it without any."""
    from essaim.usecases import locking as use

    return use.read_lock(use.lock_of(where)).overrides


def _path(composed: Composed, file: str) -> Path:
    from essaim.usecases.locking import lock_file

    return Path(file) if file else lock_file(composed.file)


def _place(app: App, where: str) -> str:
    """Where a stack is described; a stack that was raised may be called by its name."""
    from essaim.usecases.stacks import stored_stack

    if Path(where).exists() or "/" in where:
        return where
    stack, _lab = stored_stack(app, where)
    return stack.source


def _before(path: Path) -> Lock | None:
    from essaim.model.errors import EssaimError
    from essaim.usecases.locking import read_lock

    try:
        return read_lock(path)
    except EssaimError:
        return None  # whatever is there is written anew


def _changes(before: Lock | None, made: Lock) -> list[str] | None:
    from essaim.plan.lock_compare import differences

    if before is None:
        return None
    return [_sentence(found) for found in differences(before, made)]


def _sentence(found: Difference) -> str:
    return f"{found.at} {found.what}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _lines(found: Report, known: Lock) -> Iterator[str]:
    """A report as people read it: what is well in one line each, what is not in words."""
    said = (
        f"as locked: {_count(len(known.files), 'file')}, {_count(len(known.images), 'image')}"
        if not found.description
        else ""
    )
    if said:
        yield f"ok  description  {said}"
    for each in (*found.description, *found.cluster):
        yield f"NO  {_sentence(each)}"
    for node in found.nodes:
        yield from _node_lines(node, known)
    counts = {
        verdict: sum(node.verdict == verdict for node in found.nodes)
        for verdict in ("identical", "different", "unknown")
    }
    words = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    yield f"{found.stack}: {found.verdict} ({words or 'no machines'})"


def _node_lines(node: NodeReport, known: Lock) -> Iterator[str]:
    for each in node.differences:
        yield f"NO  {_sentence(each)}"
    for why in node.cannot:
        yield f"??  {node.name} {why}"
    if node.verdict != "identical":
        return
    locked = known.nodes[node.name.partition("/")[2]]
    packages = len(known.images[locked.image].packages)
    yield (
        f"ok  {node.name}  image {locked.image}, {_count(packages, 'package')}, "
        f"{_count(len(locked.files), 'file')}, {_count(len(locked.roles), 'role')}"
    )


def _document(found: Report) -> dict[str, Any]:
    return {
        "stack": found.stack,
        "verdict": found.verdict,
        "description": found.description,
        "cluster": found.cluster,
        "nodes": [
            {
                "name": node.name,
                "verdict": node.verdict,
                "differences": node.differences,
                "cannot": node.cannot,
                "seen": node.seen,
                "free": node.free,
            }
            for node in found.nodes
        ],
        "notes": found.notes,
    }
