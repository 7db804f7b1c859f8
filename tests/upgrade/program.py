"""Essaim's own commands, of whichever version is on the path, with machines that cost nothing.

`program.py serve …` does what `essaim serve …` does, except that accounts are made and machines
answer without there being any, and that one address may log in as often as it likes.
"""

from __future__ import annotations

import sys

import essaim.bootstrap
from essaim.api import options
from essaim.api.limits import Rate
from essaim.cli import main
from essaim_lab.bench.server import free


class App(essaim.bootstrap.App):
    """A control plane of such machines."""

    def __init__(self, *words: object, **named: object) -> None:
        super().__init__(*words, **named)  # type: ignore[arg-type]
        free(self)


if __name__ == "__main__":
    options.RATES = dict.fromkeys(options.RATES, Rate(1_000_000, 60.0))
    essaim.bootstrap.App = App  # type: ignore[misc] - commands take it from there when they begin
    sys.stderr.write(f"this is {essaim.__file__}\n")
    main()
