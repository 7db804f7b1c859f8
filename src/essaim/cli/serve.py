"""`serve`: API, controllers, courier and SSH gateway in one process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from essaim.cli.client import check_address, is_loopback
from essaim.cli.first_password import password_teller
from essaim.cli.joining import in_the_clear, join_line
from essaim.cli.output import say
from essaim.cli.processes import leave
from essaim.cli.signals import ENDING, acting
from essaim.cli.try_fleet import MOST, STACK, TryFleet, settings
from essaim.model.invites import SignupMode

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.cli.plane import Plane

#: The exit code of a process that was told twice to end.
INTERRUPTED = 130
#: The enrolment that is made on the first start: enough for a room, and for a day.
FIRST_USES, FIRST_SECONDS = 10, 86400
#: How people get an account, in words.
SIGNUP = {
    SignupMode.INVITE: "sign-up  with a code: essaim users invite makes one",
    SignupMode.APPROVE: "sign-up  after approval: essaim users approve NAME",
    SignupMode.OPEN: "sign-up  open to anybody; ESSAIM_SIGNUP=invite would ask for a code",
    SignupMode.CLOSED: "sign-up  closed",
}


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
    machines: Annotated[
        int | None,
        typer.Option(
            "--try",
            metavar="N",
            min=1,
            max=MOST,
            help="Make N sandbox machines here that join; removed when this ends.",
        ),
    ] = None,
) -> None:
    """Run the control plane of a fleet: machines join it, people rent them.

    The first start prints the administrator's password and the line that
    makes machines join; both are shown only then.  Where stderr is no terminal
    the password goes to a private file in ESSAIM_HOME instead of into a log.

    [bold]essaim serve --try 3[/bold] is a whole fleet on this computer: three
    sandbox machines join it, and what to type next is printed.

    [bold]essaim serve --gateway-host 0.0.0.0 --public-url https://lab.example.org[/bold]
    serves a lab, behind a proxy on the same computer that adds TLS.

    State is kept in ESSAIM_HOME, people and leases in ESSAIM_DATABASE; several
    may serve the same MariaDB or PostgreSQL database.  Ctrl-C ends it; what was
    under way goes on at the next start.
    """
    from essaim.bootstrap import App
    from essaim.cli.plane import Plane, listening

    api = listening(host, port)
    url = told_url(public_url, host, api.getsockname()[1])
    gateway = (gateway_host or host, gateway_port or _free(gateway_host or host))
    told = told_gateway(public_gateway, url, gateway)
    app = App(settings() if machines else os.environ, kind="serve")
    app.own_only = False
    fleet = TryFleet(app, machines) if machines else None
    inside = fleet.begin() if fleet else {}
    at = place(inner, 0)
    plane = Plane(app, api=[api], gateway=gateway, told=told, url=url, inner=at, **inside)
    _live(app, plane, fleet, url, told)


def _live(app: App, plane: Plane, fleet: TryFleet | None, url: str, told: tuple[str, int]) -> None:
    """Serve until a signal; a second one ends the process at once."""
    from essaim.usecases.presence import Presence

    ended = threading.Event()
    presence = Presence(app.workers, "serve", [""])

    def end() -> None:
        if ended.is_set():
            _leave_at_once(fleet)
        ended.set()

    with acting(end, *ENDING), contextlib.ExitStack() as begun:
        begun.callback(app.close)
        if fleet:
            begun.callback(fleet.remove)
        for part in (presence, plane):
            part.start()
            begun.callback(part.stop)
        say(f"API      {url}" + ("  (put a TLS proxy before it)" if in_the_clear(url) else ""))
        say(f"gateway  ssh LEASE@{told[0]} -p {told[1]}")
        if fleet:
            begun.callback(fleet.retire)
            fleet.join()
        elif app.stacks.get_stack(STACK) is not None:
            say("try      machines of an earlier serve --try are left; to remove them:")
            say(f"         essaim down {STACK}")
        say(SIGNUP[app.signup_mode])
        first_words(app, url, lends=fleet is None)
        if fleet:
            next_commands(url)
        say("ready    Ctrl-C ends it" + (" and removes the machines" if fleet else ""))
        ended.wait()
        say("stopping" + ("; Ctrl-C again leaves at once" if fleet else ""))
    leave()


def first_words(app: App, url: str, *, lends: bool = True) -> None:
    """On the first start, say how the administrator gets in and, if it lends, how machines do.

    Secrets are said only on a terminal: anything else may be a log.
    """
    from essaim.agent import source
    from essaim.usecases.nodes import enrol
    from essaim.usecases.people import FIRST, first_admin

    if app.people.has_admin():
        return
    shown = sys.stderr.isatty()
    with password_teller(app.home, FIRST, shown=shown) as tell:
        password = first_admin(app)
        if not password:
            return
        tell(password)
    say(f"         essaim login {FIRST} --server {url}")
    say("         essaim password chooses another")
    admin = app.people.find(FIRST)
    if admin is None or not lends:
        return
    if in_the_clear(url):
        say("workers  join over https: put a TLS proxy before this, say --public-url https://…,")
        say("         then essaim nodes enrol; or essaim nodes enrol --insecure-http")
        return
    if not shown:
        say("workers  essaim nodes enrol prints the line that makes a machine join")
        return
    token = enrol(app, admin[0], uses=FIRST_USES, seconds=FIRST_SECONDS)
    agent = hashlib.sha256(source().encode()).hexdigest()
    say(f"workers  as root, on up to {FIRST_USES} machines within a day (--tunnel behind NAT):")
    say(join_line(url, token, agent))
    say("         essaim nodes enrol makes another such line")
    if is_loopback(urlsplit(url).hostname or ""):
        say("         essaim serve --try 3 needs no other machine")


def next_commands(url: str) -> None:
    """Say what to type now, in another terminal."""
    say("next     in another terminal:")
    for command in (
        f"essaim signup ada --server {url}",
        "essaim rent --for 1h",
        "essaim leases",
        "essaim nodes",
        f"essaim nodes {STACK} 5",
    ):
        say(f"         {command}")


def _leave_at_once(fleet: TryFleet | None) -> None:
    """End without a word to anybody: what was under way goes on at the next start."""
    if fleet:
        say(f"left     the next essaim serve --try takes the machines over; essaim down {STACK}")
        say("         removes them")
    os._exit(INTERRUPTED)


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
