"""`config`: what a stack is made of, and where each value comes from."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from essaim.cli.output import print_json, table
from essaim.cli.stacks import Json, Overrides, Where

app = typer.Typer(help="Show a composed stack, or explain one of its values.")


@app.command()
def show(where: Where, overrides: Overrides = None, as_json: Json = False) -> None:
    """Print the stack as composed from all its levels, groups and overrides."""
    from essaim.config.compose import compose

    values = compose(where, overrides or []).values
    if as_json:
        print_json(values)
        return
    from essaim.config.show import to_yaml

    sys.stdout.write(to_yaml(values))


@app.command()
def explain(
    where: Where,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Dotted: topology.nodes.count")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Say which file and line set a value, and what it overrode."""
    from essaim.config.compose import compose

    settings = compose(where, overrides or []).provenance.explain(key)
    if as_json:
        print_json(settings)
        return
    rows = [
        (
            s.key,
            str(s.value),
            str(s.place or s.level),
            s.level,
            "" if s.wins else "overridden",
        )
        for s in settings
    ]
    sys.stdout.write(table(rows, ("KEY", "VALUE", "WHERE", "LEVEL", "")) + "\n")
