"""`check`: what is wrong with a control plane of many processes, and what to do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.output import print_json
from essaim.cli.program import localise
from essaim.cli.stacks import Json

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.store.condition import Condition

WRONG, UNUSABLE = 1, 3
#: Seconds a database has to answer here: whoever checks does not want to wait for it to come back.
PATIENCE = 3.0


class Looks:
    """What `check` looks at without the services, which would bring a database up to date."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.public_url = os.environ.get("ESSAIM_PUBLIC_URL", "")

    def condition(self) -> Condition:
        """Look at the database as it is."""
        from essaim.store.condition import condition
        from essaim.store.database import open_database

        database = open_database(self._app.database_url, (1, 1))
        database.patience = PATIENCE
        try:
            return condition(database)
        finally:
            database.close()

    def broker(self) -> str:
        """Look for the broker."""
        if not self._app.broker:
            return ""
        from essaim.couriers.reach import reach

        return reach(self._app.broker)


def check(
    new_keys: Annotated[
        bool,
        typer.Option("--new-keys", help="The keys were changed on purpose: believe the next ones."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Look at the whole control plane: what is wrong, and what to do about it.

    The database with its schema and clock, the broker, keys, processes, runs that
    nobody carries, gateways, and the certificate of ESSAIM_PUBLIC_URL.

    Exit codes: 0 all is well, 1 something is wrong, 3 the database cannot be used
    (or this computer lacks what is needed to ask it).
    """
    from essaim.bootstrap import App
    from essaim.usecases import check as use
    from essaim.usecases.keys import forget_keys

    app = App(kind="check")
    try:
        if new_keys:
            forget_keys(app)
        findings = list(use.check(app, Looks(app)))
    finally:
        app.close()
    if as_json:
        print_json(findings)
    else:
        for each in findings:
            sys.stdout.write(
                f"{'ok ' if each.ok else 'NO '} {each.name:<18} {localise(each.text)}\n"
            )
            if each.hint:
                sys.stdout.write(f"{'':22} → {localise(each.hint)}\n")
    unusable = findings[0].name == "database" and not findings[0].ok and len(findings) == 1
    sys.exit(UNUSABLE if unusable else 0 if all(each.ok for each in findings) else WRONG)
