"""`worker`: carries the runs of a control plane, here or inside a site's own network."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from essaim.cli.output import say

#: The word by which runs of no site are named on the command line.
ANY = "any"


def worker(
    site: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Carry this site's runs; repeatable. Default: any."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Runs carried at the same time.")
    ] = 16,
) -> None:
    """Carry runs that other processes of the control plane ask for.

    Any number of workers may run, anywhere that reaches ESSAIM_DATABASE and
    ESSAIM_BROKER (redis://… or amqp://…) and shares the controllers' ESSAIM_KEYS.

    [bold]essaim worker[/bold] carries the runs that belong to no site.

    [bold]essaim worker --site grenoble[/bold] is started inside that site's network: only
    such workers touch the site. With ESSAIM_SITE_QUEUES=1, set for all processes,
    runs belong to the site of their machines. [bold]--site any[/bold] adds the others.

    SIGTERM or Ctrl-C: takes no more, finishes the steps under way, hands the
    runs back. SIGQUIT: ends at once; others take over when the leases run out.
    [bold]celery -A essaim.couriers.celery inspect active[/bold] looks at all workers.
    """
    from essaim.bootstrap import App
    from essaim.model.errors import SetupError

    app = App(kind="worker")
    if not app.broker:
        raise SetupError(
            "a worker needs a broker",
            hint="set ESSAIM_BROKER to redis://host:6379/0 or amqp://user:password@host:5672//",
        )
    from essaim.couriers.celery import CeleryCourier
    from essaim.couriers.worker import CeleryWorker
    from essaim.usecases.keys import CONTROL, same_keys
    from essaim.usecases.presence import Presence

    same_keys(app, CONTROL)
    sites = {"" if name == ANY else name for name in site or [ANY]}
    app.own_only = False
    app.sites = sites
    courier = app.courier
    if not isinstance(courier, CeleryCourier):  # pragma: no cover - there is a broker
        raise TypeError(courier)
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    app.engine.release_dead()
    carrier = CeleryWorker(app.engine, courier, sites=sites, concurrency=concurrency)
    presence = Presence(app.workers, "worker", sites)
    presence.start()
    say(f"carrying runs of {', '.join(sorted(name or ANY for name in sites))}")
    try:
        code = carrier.run()
    finally:
        presence.stop()
        app.close()
    sys.exit(code)
