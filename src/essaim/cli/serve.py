"""`serve`: API, controllers, courier and SSH gateway in one process."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from essaim.cli.output import say


def serve(
    host: Annotated[str, typer.Option(help="Where the API listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The API's port.")] = 8080,
    gateway_host: Annotated[str, typer.Option(help="Where the SSH gateway listens.")] = "127.0.0.1",
    gateway_port: Annotated[int, typer.Option(help="The SSH gateway's port.")] = 2222,
) -> None:
    """Run the control plane of a fleet: machines join it, people rent them."""
    from essaim.bootstrap import App
    from essaim.cli.plane import Plane, listening
    from essaim.usecases.people import first_admin

    app = App()
    app.own_only = False
    api = listening(host, port)
    plane = Plane(app, api=[api], gateway=(gateway_host, gateway_port))
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    plane.start()
    say(f"API      http://{host}:{api.getsockname()[1]}  (put a TLS proxy before it)")
    say(f"gateway  ssh LEASE@{gateway_host} -p {plane.gateway.port}")
    password = first_admin(app)
    if password:
        say(f"admin    one-time password, shown only now: {password}")
    ended.wait()
    say("stopping")
    plane.stop()
    app.close()
