"""`rent`, `extend`, `release`."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Annotated, Any, NoReturn

import typer

from essaim.cli.access import LEASE, Way, public_key, way_in
from essaim.cli.carrying import FAILED, INTERRUPTED, PARTLY
from essaim.cli.client import Client, LoginError, connected, current
from essaim.cli.output import print_json, say
from essaim.cli.progress import on_terminal
from essaim.cli.requests import request
from essaim.cli.stacks import Json
from essaim.cli.times import clock, left, moment, seconds
from essaim.cli.tongue import said, tell
from essaim.model.errors import EssaimError, TransientError, UnknownError

OVER = ("ending", "ended", "failed")
#: Seconds the server waits with its answer, and between looks: at what is nearly ready, and at
#: what waits for others.
PATIENCE, SOON, QUEUED = 2.0, 0.4, 3.0
#: How long a server may be away, as when it is restarted, before waiting for it ends.
AWAY = 300.0

LeaseName = Annotated[str, typer.Argument(metavar="LEASE", help="As `essaim leases` lists it.")]


def labels(said_so: list[str] | None) -> dict[str, str]:
    """Read NAME=VALUE words."""
    found = {}
    for text in said_so or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text!r} is no label: say NAME=VALUE")
        found[name] = value
    return found


def mebibytes(text: str) -> int:
    """Read 512M, 16G or a number of MiB."""
    number, unit = text.strip().upper().removesuffix("IB").removesuffix("B"), 1.0
    units = {"M": 1.0, "G": 1024.0, "T": 1024.0**2}
    if number and number[-1] in units:
        number, unit = number[:-1], units[number[-1]]
    try:
        return round(float(number) * unit)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no amount of memory; say 512M or 16G") from None


def rent(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many, or none.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Of each, at least.")] = 1,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each, at least: 16G")] = "0",
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only such; may be repeated.")
    ] = None,
    site: Annotated[str, typer.Option(help="Only there.")] = "",
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="90m, 2h, 1d …")] = "1h",
    key: Annotated[
        str,
        typer.Option(metavar="FILE", help="Your public key.  Default: the usual one of ~/.ssh."),
    ] = "",
    hold: Annotated[
        str,
        typer.Option(metavar="TIME", help="Keep them so long when they are released as --failed."),
    ] = "",
    home: Annotated[
        bool,
        typer.Option("--home/--no-home", help="Copy the home, to bring it along if one dies."),
    ] = True,
    priority: Annotated[int, typer.Option(help="Before others; for operators.")] = 0,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until they can be used.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Rent machines for a time; prints the ssh command that leads to each.

    All of what is asked for or nothing.  When nothing is free you wait in a
    fair queue, and see your place in it; Ctrl-C leaves the lease in the queue.
    Typed again after a lost connection, the same command does not rent twice.

    [bold]essaim rent --for 2h[/bold]

    [bold]essaim rent -n 4 --cores 8 --memory 16G --label gpu=yes --for 1d[/bold]

    [bold]essaim rent --no-wait --json[/bold] in a script

    Exit codes: 0 rented (or queued, with --no-wait), 1 refused or failed,
    2 wrong usage, 3 not logged in, 130 stopped by Ctrl-C.
    """
    text, identity = public_key(key)
    wish = {
        "public_key": text,
        "count": count,
        "cores": cores,
        "memory": mebibytes(memory),
        "labels": labels(label),
        "site": site,
        "seconds": seconds(lasting),
    }
    # Only what is out of the ordinary, so that an older server is not asked for more.
    wish |= {"hold": seconds(hold)} if hold else {}
    wish |= {} if home else {"home": False}
    wish |= {"priority": priority} if priority else {}
    with connected() as client:
        lease = _ask(client, wish, patience=PATIENCE if wait else 0.0)
        if wait:
            lease = _wait(client, lease, quiet=as_json)
    way = way_in(lease, identity)
    if as_json:
        print_json({**lease, "ssh": _commands(way, lease)})
    else:
        _conclude(lease, way)
    sys.exit(FAILED if lease["state"] in OVER else 0)


def _ask(client: Client, wish: dict[str, Any], *, patience: float) -> dict[str, Any]:
    with request(client.server, current().name, wish) as one:
        try:
            body = {**wish, "patience": patience}
            lease = client.post("/api/rent", body, repeatable=True, key=one.key)
        except TransientError as error:
            # It may have been granted all the same: the request is kept.
            error.hint = said("rent.again")
            raise
        except EssaimError:
            one.answered()
            raise
        except KeyboardInterrupt:
            tell("rent.again")
            raise
        one.answered()
    return dict(lease)


def _wait(client: Client, lease: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Look until the lease can be used or is over, saying how it stands."""
    shown = _Shown(quiet=quiet)
    answered = time.monotonic()
    try:
        while lease["state"] not in ("active", *OVER):
            shown(_standing(lease))
            time.sleep(QUEUED if lease["state"] == "queued" else SOON)
            try:
                lease = client.get(f"/api/leases/{lease['id']}")
                answered = time.monotonic()
            except TransientError as error:
                if time.monotonic() - answered > AWAY:
                    error.hint = said("rent.look", lease=lease["id"])
                    raise
                shown(error.what)
    except KeyboardInterrupt:
        shown.end()
        _left(lease)
    finally:
        shown.end()
    return lease


def _left(lease: dict[str, Any]) -> NoReturn:
    queued = lease["state"] == "queued"
    tell("rent.left_queued" if queued else "rent.left_preparing", lease=lease["id"])
    say("  → " + said("rent.look", lease=lease["id"]))
    say("  → " + said("rent.give_up", lease=lease["id"]))
    sys.exit(INTERRUPTED)


def _standing(lease: dict[str, Any]) -> str:
    if lease["state"] != "queued":
        return said("rent.preparing", lease=lease["id"])
    return said(
        "rent.queued",
        lease=lease["id"],
        position=lease.get("position") or "?",
        eta=estimate(lease),
    )


def estimate(lease: dict[str, Any]) -> str:
    """How long a lease in the queue has to wait, as far as anybody can tell."""
    at = moment(lease.get("eta"))
    if at is None or at - time.time() < 1:
        return said("rent.eta_unknown")
    return said("rent.eta", duration=left(lease["eta"]))


class _Shown:
    """How a lease stands: on one line of a terminal, else a line whenever it is different."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line = on_terminal()
        self._last = ""

    def __call__(self, text: str) -> None:
        if self._quiet:
            return
        if self._line:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
        elif text != self._last:
            say(text)
        self._last = text

    def end(self) -> None:
        if self._line and self._last:
            sys.stderr.write("\r\033[K")
        self._last = ""


def _commands(way: Way | None, lease: dict[str, Any]) -> list[str]:
    if way is None:
        return []
    several = range(1, len(lease["nodes"]) + 1)
    return [shlex.join(way.command(number)) for number in several]


def _conclude(lease: dict[str, Any], way: Way | None) -> None:
    if lease["state"] in OVER:
        tell("rent.failed", lease=lease["id"], reason=lease["reason"] or lease["state"])
        return
    if way is None:
        say(_standing(lease))
        say("  → " + said("rent.look", lease=lease["id"]))
        return
    tell(
        "rent.granted",
        lease=lease["id"],
        count=len(lease["nodes"]),
        until=clock(lease["expires_at"]),
    )
    tell("rent.enter", lease=lease["id"])
    for command in _commands(way, lease):
        sys.stdout.write(command + "\n")


def extend(
    lease: LeaseName,
    longer: Annotated[
        str, typer.Argument(metavar="[TIME]", help="How much longer: 30m, 2h, 1d")
    ] = "1h",
    as_json: Json = False,
) -> None:
    """Keep machines longer, within your quota: an hour, or as long as you say.

    [bold]essaim extend l-3k9x2m7q[/bold]

    [bold]essaim extend l-3k9x2m7q 30m[/bold]
    """
    check_lease(lease)
    with connected() as client:
        try:
            found = client.post("/api/extend", {"lease": lease, "seconds": seconds(longer)})
        except TransientError as error:
            # Not repeated by itself: twice would be twice as long.
            error.hint = said("rent.look", lease=lease)
            raise
    if as_json:
        print_json(found)
        return
    tell("extend.done", lease=lease, until=clock(found["expires_at"]))


def release(
    leases: Annotated[list[str], typer.Argument(metavar="LEASE…", help="One or several.")],
    failed: Annotated[
        bool,
        typer.Option("--failed", help="What ran there failed: keep them for the --hold of rent."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Give machines back; all you left on them is removed.

    A lease in the queue is given up.  With --failed a lease rented with --hold
    is kept a while longer, so that you can look why; released once more it is
    given back.

    [bold]essaim release l-3k9x2m7q[/bold]

    Exit codes: 0 all are given back, 1 none, 4 some.
    """
    for lease in leases:
        check_lease(lease)
    with connected() as client:
        answers = [_release(client, lease, failed=failed, tell_it=not as_json) for lease in leases]
    if as_json:
        print_json(answers)
    wrong = sum("error" in answer for answer in answers)
    sys.exit(0 if not wrong else PARTLY if wrong < len(leases) else FAILED)


def _release(client: Client, lease: str, *, failed: bool, tell_it: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"lease": lease, "failed": True} if failed else {"lease": lease}
    try:
        # Failed twice is given back, so that may not be repeated by itself.
        found = dict(client.post("/api/release", body, repeatable=not failed))
    except LoginError:
        raise
    except EssaimError as error:
        if tell_it:
            say(f"essaim: {error.what}" + (f"\n  → {error.hint}" if error.hint else ""))
        return {"id": lease, "error": {"code": error.code, "what": error.what}}
    if tell_it:
        key = "release.held" if found["state"] not in OVER else "release.done"
        key = "release.over" if found["state"] in ("ended", "failed") else key
        tell(key, lease=lease, until=clock(found["expires_at"]))
    return found


def check_lease(lease: str) -> None:
    """Refuse what cannot be a lease before anybody is asked."""
    found = LEASE.fullmatch(lease)
    if found is None or found[2]:
        raise UnknownError(said("lease.none", lease=lease), hint=said("leases.look"))
