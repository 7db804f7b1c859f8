"""`serve`: API, controllers, courier and SSH gateway in one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from essaim.cli.client import check_address, is_loopback
from essaim.cli.joining import in_the_clear, join_line
from essaim.cli.output import say
from essaim.cli.processes import leave
from essaim.cli.signals import ENDING, acting

if TYPE_CHECKING:
    from essaim.bootstrap import App

#: The enrolment that is made on the first start: enough for a room, and for a day.
FIRST_USES, FIRST_SECONDS = 10, 86400


def serve(
    host: Annotated[str, typer.Option(help="Where the API listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The API's port; 0 for any.")] = 8080,
    gateway_host: Annotated[str, typer.Option(help="Where the SSH gateway listens.")] = "",
    gateway_port: Annotated[int, typer.Option(help="The gateway's port; 0 for any.")] = 2222,
    public_url: Annotated[
        str, typer.Option(metavar="URL", help="How people and machines reach the API.")
    ] = "",
    public_gateway: Annotated[
        str,
        typer.Option(metavar="HOST[:PORT]", help="How they reach the gateway, if otherwise."),
    ] = "",
    inner: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            envvar="ESSAIM_INNER",
            help="Where other processes reach machines behind this gateway.",
        ),
    ] = "127.0.0.1",
) -> None:
    """Run the control plane of a fleet: machines join it, people rent them.

    The first start prints the administrator's password and the line that
    makes machines join; both are shown only then.

    [bold]essaim serve[/bold] is for this computer only: try it out.

    [bold]essaim serve --gateway-host 0.0.0.0 --public-url https://lab.example.org[/bold]
    serves a lab, behind a proxy on the same computer that adds TLS.

    State is kept in ESSAIM_HOME, people and leases in ESSAIM_DATABASE; several
    may serve the same MariaDB or PostgreSQL database.  Ctrl-C ends it; what was
    under way goes on at the next start.
    """
    from essaim.bootstrap import App
    from essaim.cli.plane import Plane, listening
    from essaim.usecases.presence import Presence

    api = listening(host, port)
    url = told_url(public_url, host, api.getsockname()[1])
    gateway = (gateway_host or host, gateway_port or _free(gateway_host or host))
    told = told_gateway(public_gateway, url, gateway)
    app = App(kind="serve")
    app.own_only = False
    plane = Plane(app, api=[api], gateway=gateway, told=told, url=url, inner=place(inner, 0))
    ended = threading.Event()
    presence = Presence(app.workers, "serve", [""])
    with acting(ended.set, *ENDING):
        presence.start()
        plane.start()
        say(
            f"API      {url}" + ("" if url.startswith("https") else "  (put a TLS proxy before it)")
        )
        say(f"gateway  ssh LEASE@{told[0]} -p {told[1]}")
        first_words(app, url)
        say("ready    Ctrl-C ends it")
        ended.wait()
        say("stopping")
        plane.stop()
        presence.stop()
        app.close()
    leave()


def first_words(app: App, url: str) -> None:
    """On the first start, say how the administrator gets in and how machines do."""
    from essaim.usecases.nodes import enrol
    from essaim.usecases.people import FIRST, first_admin

    password = first_admin(app)
    if not password:
        return
    say(f"{FIRST}    password, shown only now: {password}")
    say(f"         essaim login {FIRST} --server {url}, then essaim password")
    admin = app.people.find(FIRST)
    if admin is None:
        return
    token = enrol(app, admin[0], uses=FIRST_USES, seconds=FIRST_SECONDS)
    more = ["--insecure"] if in_the_clear(url) else []
    say(f"workers  as root, on up to {FIRST_USES} machines within a day (--tunnel behind NAT):")
    say(f"         {join_line(url, token, more)}")
    say("         essaim nodes enrol makes another such line")


def told_url(public: str, host: str, port: int) -> str:
    """How people and machines reach the API: as said, else where it listens."""
    if public:
        check_address(public, insecure=True)
        return public.rstrip("/")
    if is_loopback(host):
        say("only this computer reaches the API; others need --public-url, or --host 0.0.0.0")
    from essaim.cli.plane import ANYWHERE, own_address

    shown = own_address() if host in ANYWHERE else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def told_gateway(public: str, url: str, gateway: tuple[str, int]) -> tuple[str, int]:
    """Where agents and people find the gateway: as said, else where they find the API."""
    if not public:
        return urlsplit(url).hostname or gateway[0], gateway[1]
    return place(public, gateway[1])


def place(said: str, port: int) -> tuple[str, int]:
    """Read HOST[:PORT]; `port` is the one that need not be said."""
    try:
        parts = urlsplit(f"//{said}")
        host, number = parts.hostname, parts.port
    except ValueError:
        host, number = None, None
    if not host:
        raise typer.BadParameter(f"{said!r} is no HOST[:PORT]")
    return host, port if number is None else number


def _free(host: str) -> int:
    from essaim.cli.plane import listening

    with listening(host, 0) as probe:
        return int(probe.getsockname()[1])
