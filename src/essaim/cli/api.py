"""`api`: the HTTP API as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from essaim.cli.processes import live, start_log
from essaim.cli.serve import first_words, told_gateway, told_url


def api(
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 for any.")] = 8080,
    public_url: Annotated[
        str,
        typer.Option(
            metavar="URL", envvar="ESSAIM_PUBLIC_URL", help="How people and machines reach it."
        ),
    ] = "",
    public_gateway: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            envvar="ESSAIM_PUBLIC_GATEWAY",
            help="How they reach the gateways.",
        ),
    ] = "",
    drain: Annotated[
        float,
        typer.Option(
            min=0,
            envvar="ESSAIM_DRAIN",
            help="Seconds it says 503 at /readyz before it stops listening.",
        ),
    ] = 5.0,
) -> None:
    """Answer people and machines over HTTP; any number of these may run.

    It keeps no state: all of it is in ESSAIM_DATABASE (MariaDB or PostgreSQL).  All
    APIs share one ESSAIM_KEYS, with the key that signs access tokens; they need none
    of the SSH keys of gateways and controllers, and should see none.
    Runs are carried by [bold]essaim worker[/bold] (with ESSAIM_BROKER) or
    [bold]essaim controller[/bold] (without).

    A proxy with TLS stands before it and asks /readyz.  SIGTERM: /readyz says 503
    for --drain seconds, then the answers under way are finished; exit code 0.

    [bold]essaim api --host 0.0.0.0 --public-url https://lab.example.org
    --public-gateway lab.example.org:2222[/bold]
    """
    from essaim.bootstrap import App
    from essaim.cli.plane import ApiServer, listening
    from essaim.usecases.keys import API, same_keys

    start_log("api")
    listener = listening(host, port)
    url = told_url(public_url, host, listener.getsockname()[1])
    gateway = told_gateway(public_gateway, url, ("localhost", 2222))
    app = App(kind="api")
    same_keys(app, API)
    server = ApiServer(app, [listener], gateway=gateway, url=url, drain=drain)
    first_words(app, url)
    live(app, [server], said=lambda: f"ready: {url}, gateways at {gateway[0]}:{gateway[1]}")
