"""`autoscale`: as many replicas of a service as its load needs."""

from __future__ import annotations

import enum
import functools
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.output import duration, print_json, say, table
from essaim.cli.signals import ENDING, acting
from essaim.cli.stacks import Json, control_plane

if TYPE_CHECKING:
    from essaim.controllers.autoscale import Gauge
    from essaim.plan.scaling import Policy
    from essaim.scaling.processes import Processes
    from essaim.scaling.replicas import Replicas
    from essaim.store.scaling import Holder, Look, Scaling

app = typer.Typer()

#: The busiest a replica may be aimed at: above, nobody could see that it is too busy.
BUSIEST = 0.85
#: How these commands are run as processes of this computer.
COMMANDS = {
    "api": ("api", "--host", "127.0.0.1", "--port", "{port}"),
    "controller": ("controller",),
    "worker": ("worker",),
}
CONTROLLER = "controller"
BOUNDS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
ESSAIM = (sys.executable, "-P", "-c", "from essaim.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Scaled:
    """A service, its replicas, how their load is measured, and what is wanted of them."""

    service: str
    replicas: Replicas
    gauge: Gauge
    policy: Policy


class Backend(enum.StrEnum):
    """What the replicas are."""

    DOCKER = "docker"
    PROCESS = "process"


class Measure(enum.StrEnum):
    """What their load is read from."""

    CPU = "cpu"
    QUEUE = "queue"


@app.callback(invoke_without_command=True)
def autoscale(
    context: typer.Context,
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of the Compose file; with processes: api, controller, worker."
        ),
    ] = "api",
    controllers: Annotated[
        str, typer.Option(metavar="MIN-MAX", help="Also scale the controllers, by their CPU.")
    ] = "",
    backend: Annotated[Backend, typer.Option(help="What the replicas are.")] = Backend.PROCESS,
    fewest: Annotated[int, typer.Option("--min", min=1, help="Never fewer replicas.")] = 1,
    most: Annotated[int, typer.Option("--max", min=1, help="Never more replicas.")] = 6,
    target: Annotated[
        float | None, typer.Option(help="How busy each should be, of 1: 0.6; on the queue 1.")
    ] = None,
    measure: Annotated[
        Measure | None, typer.Option(help="What counts: cpu; for workers the queue.")
    ] = None,
    cpus: Annotated[float, typer.Option(help="Processors that one replica can use.")] = 1.0,
    per_worker: Annotated[
        int, typer.Option("--per-worker", min=1, help="Runs that one worker carries at a time.")
    ] = 16,
    site: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Count only this site's runs.")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between looks.")] = 5.0,
    rise: Annotated[float, typer.Option(help="Seconds it must be too busy.")] = 15.0,
    fall: Annotated[float, typer.Option(help="Seconds it must have been idle.")] = 180.0,
    cooldown: Annotated[float, typer.Option(help="Seconds between changes.")] = 30.0,
    warm_up: Annotated[float, typer.Option(help="Seconds a new replica is not counted.")] = 20.0,
    project: Annotated[str, typer.Option(help="The Compose project.")] = "essaim",
    engine: Annotated[
        str, typer.Option(metavar="SOCKET", help="Where the Docker engine listens.")
    ] = "/var/run/docker.sock",
    caddy: Annotated[
        str, typer.Option(metavar="URL", help="Caddy's admin API, told where processes are.")
    ] = "",
    end_together: Annotated[
        bool, typer.Option("--end-together", help="End the processes when this ends.")
    ] = False,
) -> None:
    """Keep as many replicas of a service as its load needs, until stopped.

    [bold]essaim autoscale --backend docker --service api --min 2 --max 6[/bold]
    reads the containers' CPU and adds or removes some.

    [bold]essaim autoscale --service api --caddy http://127.0.0.1:2019[/bold]
    does without Docker: processes of this computer, behind a Caddy.

    [bold]essaim autoscale --service api --max 4 --controllers 1-3[/bold]
    scales the controllers beside the API, within limits of their own.

    [bold]essaim autoscale --backend docker --service worker[/bold] looks at the runs that
    wait, and for how long.

    Start a second one anywhere: it stands by and takes over within 10 s.
    [bold]essaim autoscale status[/bold] says what was decided, and why.
    """
    if context.invoked_subcommand:
        return
    counted = measure or (Measure.QUEUE if service == "worker" else Measure.CPU)
    make = functools.partial(
        _policy,
        target=target,
        interval=interval,
        rise=rise,
        fall=fall,
        cooldown=cooldown,
        warm_up=warm_up,
    )
    wanted = {service: (counted, make(counted, fewest=fewest, most=most))}
    if controllers:
        if service == CONTROLLER:
            raise typer.BadParameter("--service controller: say --min and --max instead")
        lowest, highest = _bounds(controllers)
        wanted[CONTROLLER] = (Measure.CPU, make(Measure.CPU, fewest=lowest, most=highest))
    with control_plane() as control:
        from essaim.controllers.autoscale import CpuGauge, QueueGauge
        from essaim.store.scaling import Scaling

        scaling = Scaling(control.database)
        sites = {"" if name == "any" else name for name in site} if site else None
        folder = control.home / "replicas"
        scaled = []
        for name, (counts, policy) in wanted.items():
            gauge = (
                CpuGauge(policy, cpus=cpus)
                if counts is Measure.CPU
                else QueueGauge(policy, scaling, each=per_worker, sites=sites)
            )
            if backend is Backend.DOCKER:
                from essaim.scaling.docker import Containers

                replicas: Replicas = Containers(project, name, socket=engine)
                scaled.append(Scaled(f"{project}/{name}", replicas, gauge, policy))
                continue
            replicas = _processes(folder / name, name, caddy if name == service else "")
            # The processes of another computer are scaled there.
            scaled.append(Scaled(f"{name}@{socket.gethostname()}", replicas, gauge, policy))
        _run(scaling, scaled)
        if end_together and backend is Backend.PROCESS:
            # All go, so there is nobody left to tell the proxy of.
            for name in wanted:
                _processes(folder / name, name, "").end()


def _bounds(said: str) -> tuple[int, int]:
    """Read `1-3`, or `2` for always two."""
    found = BOUNDS.fullmatch(said)
    if found is None or not int(found[1]):
        raise typer.BadParameter(f"--controllers {said}: say MIN-MAX, such as 1-3")
    return int(found[1]), int(found[2] or found[1])


def _policy(measure: Measure, *, target: float | None, **more: Any) -> Policy:
    from essaim.plan.scaling import Policy

    queue = measure is Measure.QUEUE
    if target is None:
        target = 1.0 if queue else 0.6
    if target > BUSIEST and not queue:
        raise typer.BadParameter(f"--target {target:g}: at most {BUSIEST:g} of a processor")
    try:
        return Policy(target=target, **more)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _processes(folder: Path, service: str, caddy: str) -> Processes:
    from essaim.scaling.processes import Processes
    from essaim.scaling.upstreams import Caddy

    if service not in COMMANDS:
        raise typer.BadParameter(f"--service {service}: as processes {' or '.join(COMMANDS)}")
    command = [*ESSAIM, *COMMANDS[service]]
    return Processes(folder, command, upstreams=Caddy(caddy) if caddy else None)


def _run(scaling: Scaling, scaled: Sequence[Scaled]) -> None:
    from essaim.cli.processes import start_log
    from essaim.controllers.autoscale import Autoscale
    from essaim.controllers.leading import Leader
    from essaim.controllers.loops import Loops
    from essaim.engine.owner import this_owner

    start_log("autoscale")
    ended = threading.Event()
    leaders = [Leader(scaling, each.service, this_owner()) for each in scaled]
    loops = Loops(
        [
            Autoscale(
                scaling,
                leader,
                each.replicas,
                each.gauge,
                service=each.service,
                policy=each.policy,
            )
            for leader, each in zip(leaders, scaled, strict=True)
        ]
    )
    with acting(ended.set, *ENDING):
        for leader in leaders:
            leader.start()
        loops.start()
        for each in scaled:
            limits = f"{each.policy.fewest} to {each.policy.most} replicas"
            say(f"ready    {each.service}: {limits} at {each.policy.target:.0%}")
        ended.wait()
        say("stopping")
        loops.stop()


@app.command()
def status(
    limit: Annotated[int, typer.Option("-n", help="How many changes, newest first.")] = 10,
    as_json: Json = False,
) -> None:
    """Say who scales what, how it looks now, and what was changed lately and why.

    [bold]essaim autoscale status[/bold]

    [bold]essaim autoscale status --json | jq '.[].now'[/bold]
    """
    with control_plane() as control:
        from essaim.store.scaling import Scaling

        scaling = Scaling(control.database)
        now = scaling.now()
        found = [
            (each, scaling.last(each.service), scaling.changes(each.service, limit))
            for each in scaling.holders()
        ]
    if as_json:
        print_json([_plain(each, last, changes) for each, last, changes in found])
        return
    if not found:
        say("nothing has been scaled yet: essaim autoscale --help")
    for each, last, changes in found:
        _explain(each, last, changes, now)


def _explain(holder: Holder, last: Look | None, changes: list[Look], now: int) -> None:
    sys.stdout.write(f"{holder.service}: {_who(holder, now)}\n")
    if last is not None:
        ago = duration(max(0, now - last.sample.at) / 1000)
        seen = "?" if last.seen is None else last.seen
        sys.stdout.write(f"  {ago} ago: {seen} there, {last.decision.replicas} wanted\n")
        sys.stdout.write(f"  {last.decision.reason}\n")
        if last.trouble:
            sys.stdout.write(f"  trouble: {last.trouble}\n")
    rows = [
        (
            time.strftime("%d %b %H:%M:%S", time.localtime(each.sample.at / 1000)),
            f"{each.sample.wanted} → {each.decision.replicas}",
            each.decision.reason,
        )
        for each in changes
    ]
    if rows:
        shown = table(rows, ("WHEN", "REPLICAS", "WHY"))
        sys.stdout.write("".join(f"  {line}\n" for line in shown.splitlines()))


def _who(holder: Holder, now: int) -> str:
    if holder.left < 0:
        return "nobody scales it now"
    host, _, rest = holder.owner.partition(":")
    pid = rest.split(":")[-2] if rest.count(":") > 1 else "?"
    return f"scaled by process {pid} of {host} for {duration((now - holder.since_at) / 1000)}"


def _plain(holder: Holder, last: Look | None, changes: list[Look]) -> dict[str, Any]:
    return {
        "service": holder.service,
        "scaled_by": holder.owner if holder.left >= 0 else None,
        "now": _look(last) if last else None,
        "changes": [_look(each) for each in changes],
    }


def _look(look: Look) -> dict[str, Any]:
    return {
        "at": look.sample.at,
        "seen": look.seen,
        "before": look.sample.wanted,
        "wanted": look.decision.replicas,
        "load": look.sample.low,
        "reason": look.decision.reason,
        "trouble": look.trouble,
    }
