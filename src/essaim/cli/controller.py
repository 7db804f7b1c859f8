"""`controller`: what keeps the fleet as it should be, as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from essaim.cli.processes import ReadyFile, live, start_log


def controller(
    homes_every: Annotated[
        float, typer.Option(min=1, help="Seconds between copies of a home.")
    ] = 60.0,
    ready_file: ReadyFile = "",
) -> None:
    """Check machines, grant the queue, end leases, copy homes; any number may run.

    Whatever one of them decides, only one can do; when one dies, the others go on.
    Machines behind tunnels are reached through the gateways.

    ESSAIM_HOMES is the folder for copies of homes; with more than one controller or
    worker it must be shared between their computers.  Without ESSAIM_BROKER this
    process also carries runs.

    SIGTERM: finishes its looks, hands runs back; exit code 0.
    """
    from essaim.bootstrap import App
    from essaim.cli.plane import Controllers
    from essaim.usecases.keys import CONTROL, same_keys

    start_log("controller")
    app = App(kind="controller")
    app.own_only = False
    same_keys(app, CONTROL)
    live(
        app,
        [Controllers(app, homes_every=homes_every)],
        ready_file=ready_file,
        said=lambda: "ready",
    )
