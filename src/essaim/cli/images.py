"""`image`: what machines are made from."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from essaim.cli.asking import agree
from essaim.cli.output import print_json, say, table
from essaim.cli.progress import Notes
from essaim.cli.stacks import Json, control_plane

app = typer.Typer(help="List, build and remove images.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="IMAGE", help="images/<name>.yaml")]


@app.command("list")
def list_images(as_json: Json = False) -> None:
    """List the images in the cache."""
    with control_plane() as control:
        found = control.images.list()
    if as_json:
        print_json(found)
        return
    rows = [
        (i.name, i.form, _size(i.size), i.digest[:12], i.built_at, f"{i.seconds:.0f} s")
        for i in found
    ]
    headings = ("IMAGE", "FORM", "SIZE", "DIGEST", "BUILT", "TOOK")
    sys.stdout.write(table(rows, headings) + "\n")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count else "?"


@app.command()
def build(
    name: Name,
    lab: Annotated[str, typer.Option(help="The lab whose images/ to look in.")] = ".",
    form: Annotated[
        str,
        typer.Option(
            metavar="rootfs|disk",
            help="For sandboxes or for virtual machines; by default what the builder makes first.",
        ),
    ] = "",
) -> None:
    """Build an image unless the cache has it."""
    from essaim.config.images import find_image
    from essaim.images.builders import forms_of
    from essaim.model.errors import UnknownError
    from essaim.model.machines import Form
    from essaim.model.spelling import meant

    image = find_image(name, lab)
    if form and form not in set(Form):
        raise UnknownError(f"no form called {form}", hint=meant(form, Form, kind="there are"))
    wanted = Form(form) if form else forms_of(image)[0]
    with control_plane() as control:
        path = control.images.build(image, Notes(), wanted)
    say(f"{name} is ready as {wanted}: {path}")


@app.command()
def remove(
    name: Name,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask, though stacks use it.")
    ] = False,
) -> None:
    """Remove an image from the cache; the next stack that wants it builds it again."""
    from essaim.usecases import stacks as use

    with control_plane() as control:
        if users := use.with_image(control, name):
            agree(f"Machines of {', '.join(users)} cannot start without it. Go on?", yes=yes)
        count = control.images.remove(name)
    say(f"{name}: {count} removed")


@app.command()
def check(
    name: Name,
    lab: Annotated[str, typer.Option(help="The lab whose images/ to look in.")] = ".",
    as_json: Json = False,
) -> None:
    """Say what is known of an image without building it; of a NixOS image, how far it comes.

    Exit code 4 when its files were parsed, but nothing here could evaluate them.
    """
    from essaim.cli.carrying import PARTLY
    from essaim.config.images import find_image
    from essaim.images import nix
    from essaim.images.builders import builder_of, forms_of

    image = find_image(name, lab)
    if image.builder != "nix":
        for form in forms_of(image):
            builder_of(image, form).check(image)
        say(f"{name}: its settings make sense and the tools are here")
        return
    found = nix.examine(image)
    if as_json:
        print_json(found)
    else:
        sys.stdout.write("\n".join(nix.lines(found)) + "\n")
    sys.exit(0 if found.stage is nix.Stage.EVALUATED else PARTLY)
