"""`compare`: the same topology in several variants, on the same workload."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.asking import agree
from essaim.cli.carrying import FAILED, INTERRUPTED, PARTLY
from essaim.cli.output import inform, print_json, say, table
from essaim.cli.signals import acting
from essaim.cli.stacks import Json, Quiet, Verbose, Where, control_plane
from essaim.cli.terminal import USUAL, columns, is_terminal

if TYPE_CHECKING:
    from essaim.usecases.comparing import Comparison


def compare(
    where: Where,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Hydra overrides and sweeps: scheduler=slurm,oar nodes=4 workload.jobs=100",
        ),
    ] = None,
    workload: Annotated[
        str, typer.Option(metavar="WORKLOAD", help="A directory with workload.yaml, or a file.")
    ] = "workloads/sleep-array",
    repeat: Annotated[int, typer.Option(min=1, help="How often each variant is measured.")] = 1,
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", help="All variants at once, not one after another.")
    ] = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Raise each variant once for all its repetitions.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the last stacks standing, to look at them.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the results go, and are gone on with.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Forget what DIR holds and begin again.")
    ] = False,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="Draw figures.")] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before kept stacks are removed.")
    ] = False,
    as_json: Json = False,
    _quiet: Quiet = False,
    _verbose: Verbose = False,
) -> None:
    """Raise each variant, run a workload on it, measure, take it down; then write a report.

    [bold]essaim compare examples/bench scheduler=slurm,gridengine,oar nodes=4 --repeat 3[/bold]

    DIR holds report.html, figures, results.csv, jobs.csv and results.json. What was interrupted
    goes on where it was with the same command.
    """
    from essaim.usecases import comparing as use

    wanted = use.Wanted(
        where=where,
        overrides=overrides or [],
        workload=workload,
        repeat=repeat,
        side_by_side=side_by_side,
        reuse=reuse,
        keep=keep,
        anew=anew,
        plots=plots,
    )
    place = out or Path(f"compare-{Path(where).absolute().name}-{Path(workload).absolute().name}")

    def confirm(kept: Sequence[str]) -> None:
        agree(f"{', '.join(kept)} and its disks are removed. Go on?", yes=yes)

    with control_plane() as app, _halting() as halt:
        ended = use.compare(app, wanted, place, tell=inform, halt=halt, agree=confirm)
    _conclude(ended, as_json=as_json)


@contextmanager
def _halting() -> Iterator[threading.Event]:
    """Ctrl-C once: end soon, and leave nothing standing.  Twice: leave at once."""
    halt = threading.Event()

    def stop() -> None:
        if is_terminal(sys.stderr):
            sys.stderr.write("\n")  # not behind what the terminal shows of Ctrl-C
        say("stopping; what stands is taken down first (Ctrl-C again leaves at once)")
        halt.set()

    with acting(stop, signal.SIGINT, once=True):
        yield halt


def _conclude(ended: Comparison, *, as_json: bool) -> None:
    from essaim.usecases.comparing_files import summary

    spreads = summary(ended.results)
    if as_json:
        print_json(
            {
                "summary": spreads,
                "failures": ended.failures,
                "standing": ended.standing,
                "stopped": ended.stopped,
                "files": ended.files,
            }
        )
    elif ended.results:
        sys.stdout.write(_table(ended) + "\n")
    for name in ended.standing:
        say(f"{name} stands; essaim down {name} removes it")
    for file in ended.files:
        if file.name == "report.html":
            say(f"report: {file}")
    sys.exit(_exit_code(ended))


def _exit_code(ended: Comparison) -> int:
    if ended.stopped:
        say("stopped; the same command goes on where it was")
        return INTERRUPTED
    lost = sum(result["measures"]["failed"] for result in ended.results)
    if lost:
        say(f"{lost} jobs failed; results.csv says under which variant")
    if not (ended.failures or lost):
        return 0
    return PARTLY if ended.results else FAILED


def _table(ended: Comparison) -> str:
    """One line for each variant; where that is too wide, one line for each measure."""
    from essaim.plan.comparing import METRICS, Spread
    from essaim.usecases.comparing_files import summary

    shown = [m for m in METRICS if not m.key.endswith(("_p50", "_max"))]

    def cell(its: Spread, digits: int) -> str:
        if its.mean is None:
            return "-"
        spread = f" ± {its.deviation:.{digits}f}" if its.deviation is not None else ""
        return f"{its.mean:.{digits}f}{spread}"

    labels = {result["variant"]: result["label"] for result in ended.results}
    rows = [
        (labels[variant], *(cell(figures[m.key], m.digits) for m in shown))
        for variant, figures in summary(ended.results).items()
    ]
    headings = ("VARIANT", *(f"{m.title.upper()} {m.unit}".rstrip() for m in shown))
    room = columns(sys.stdout) or USUAL
    if _wide(zip(headings, *rows, strict=True)) <= room:
        return table(rows, headings)
    # A variant and its figures are a column: as many as there is room for beside each other.
    measures = ("MEASURE", *(f"{m.title} {m.unit}".rstrip() for m in shown))
    parts: list[list[Sequence[str]]] = []
    for row in rows:
        if not parts or _wide([measures, *parts[-1], row]) > room:
            parts.append([])
        parts[-1].append(row)
    return "\n\n".join(_turned(measures, *part) for part in parts)


def _turned(*columns_: Sequence[str]) -> str:
    headings, *lines = zip(*columns_, strict=True)
    return table(lines, headings)


def _wide(columns_: Iterable[Sequence[str]]) -> int:
    """Characters that columns take beside each other."""
    widths = [max(map(len, column)) for column in columns_]
    return sum(widths) + 2 * (len(widths) - 1)
