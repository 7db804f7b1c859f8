"""`image`: what machines are made from."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

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
        (i.name, i.digest[:12], str(len(i.manifest["packages"])), i.built_at, f"{i.seconds:.0f} s")
        for i in found
    ]
    headings = ("IMAGE", "DIGEST", "PACKAGES", "BUILT", "TOOK")
    sys.stdout.write(table(rows, headings) + "\n")


@app.command()
def build(
    name: Name,
    lab: Annotated[str, typer.Option(help="The lab whose images/ to look in.")] = ".",
) -> None:
    """Build an image unless the cache has it."""
    from essaim.config.images import find_image

    image = find_image(name, lab)
    with control_plane() as control:
        path = control.images.build(image, Notes())
    say(f"{name} is ready: {path}")


@app.command()
def remove(name: Name) -> None:
    """Remove an image from the cache; the next stack that wants it builds it again."""
    with control_plane() as control:
        count = control.images.remove(name)
    say(f"{name}: {count} removed")
