"""`gateway`: the SSH gateway as a process of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from essaim.cli.processes import ReadyFile, live, start_log
from essaim.cli.serve import place


def gateway(
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 for any.")] = 2222,
    inner: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            envvar="ESSAIM_INNER",
            help="Where other processes reach machines behind it. Default: our own address.",
        ),
    ] = "",
    public: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            envvar="ESSAIM_GATEWAY_ADDRESS",
            help="How agents reach this very gateway, if each has an address of its own.",
        ),
    ] = "",
    linger: Annotated[
        float,
        typer.Option(min=0, envvar="ESSAIM_LINGER", help="Seconds sessions may go on at the end."),
    ] = 30.0,
    ready_file: ReadyFile = "",
) -> None:
    """Lead people to the machines they rent, over SSH; any number of these may run.

    All share two keys, in ESSAIM_KEYS: the one they show, and the one that opens the
    accounts of leases to them alone.  A machine's tunnel ends at one of them;
    the others, and controllers and workers, reach the machine through its inner door,
    which asks for a key that only processes with access to the database have.  The
    inner door need not, and should not, be reachable from outside.

    SIGTERM: lets nobody new in, sessions go on for up to --linger seconds, machines
    take their tunnels elsewhere; exit code 0.  A second SIGTERM ends it at once.

    [bold]essaim gateway --host 0.0.0.0 --inner 10.0.0.5:2223 --public gw1.example.org[/bold]
    """
    from essaim.bootstrap import App
    from essaim.cli.plane import GatewayServer, own_address
    from essaim.usecases.keys import GATEWAY, same_keys

    start_log("gateway")
    app = App(kind="gateway")
    same_keys(app, GATEWAY)
    server = GatewayServer(
        app,
        (host, port),
        inner=place(inner, 0) if inner else (own_address(), 0),
        public=place(public, port) if public else ("", 0),
        linger=linger,
    )
    live(
        app,
        [server],
        ready_file=ready_file,
        said=lambda: f"ready: {host} port {server.gateway.port}, {server.id}",
        hurry=server.gateway.hurry,
    )
