"""`serve`: API, controllers, courier and SSH gateway in one process."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from essaim.cli.client import check_address, is_loopback
from essaim.cli.joining import in_the_clear, join_line
from essaim.cli.output import say

if TYPE_CHECKING:
    from essaim.bootstrap import App

#: The enrolment that is made on the first start: enough for a room, and for a day.
FIRST_USES, FIRST_SECONDS = 10, 86400
ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not listened on


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

    api = listening(host, port)
    url = _told_url(public_url, host, api.getsockname()[1])
    gateway = (gateway_host or host, gateway_port or _free(gateway_host or host))
    told = _told_gateway(public_gateway, url, gateway)
    app = App()
    app.own_only = False
    plane = Plane(app, api=[api], gateway=gateway, told=told)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    plane.start()
    say(f"API      {url}" + ("" if url.startswith("https") else "  (put a TLS proxy before it)"))
    say(f"gateway  ssh LEASE@{told[0]} -p {told[1]}")
    _first(app, url)
    say("ready    Ctrl-C ends it")
    ended.wait()
    say("stopping")
    plane.stop()
    app.close()


def _first(app: App, url: str) -> None:
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


def _told_url(public: str, host: str, port: int) -> str:
    if public:
        check_address(public, insecure=True)
        return public.rstrip("/")
    if is_loopback(host):
        say("only this computer reaches the API; others need --public-url, or --host 0.0.0.0")
    shown = _own_address() if host in ANYWHERE else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _told_gateway(public: str, url: str, gateway: tuple[str, int]) -> tuple[str, int]:
    """Where agents and people find the gateway: as said, else where they find the API."""
    if not public:
        return urlsplit(url).hostname or gateway[0], gateway[1]
    try:
        said = urlsplit(f"//{public}")
        found = said.hostname, said.port or gateway[1]
    except ValueError:
        found = None, 0
    if not found[0]:
        raise typer.BadParameter(f"{public!r} is no HOST[:PORT]")
    return found[0], found[1]


def _own_address() -> str:
    """The address this computer has on its way out; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _free(host: str) -> int:
    from essaim.cli.plane import listening

    with listening(host, 0) as probe:
        return int(probe.getsockname()[1])
