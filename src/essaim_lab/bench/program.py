"""`essaim` whose machines cost nothing, with one workflow more, whose runs only wait.

Run as a program with the arguments of `essaim`.  With ESSAIM_BENCH_HOST it says that it runs on a
computer of that name, so that nobody sees from outside that it has died.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.engine.workflow import Context, Workflow

WAITS = "waits"
ELSEWHERE = "ESSAIM_BENCH_HOST"


def waits() -> Workflow:
    """Make the workflow: its one step sleeps as long as its run says."""
    from essaim.engine.workflow import Step, Workflow  # noqa: PLC0415 - loaded when it is needed

    return Workflow(WAITS, (Step(name="wait", do=_wait),))


def main() -> None:
    """Be `essaim`."""
    from essaim import bootstrap  # noqa: PLC0415
    from essaim.cli import main as essaim  # noqa: PLC0415
    from essaim.engine import owner  # noqa: PLC0415
    from essaim.workflows import table  # noqa: PLC0415
    from essaim_lab.bench.server import free  # noqa: PLC0415

    class App(bootstrap.App):
        def __init__(
            self, environ: Mapping[str, str] = os.environ, *, kind: str = "command"
        ) -> None:
            super().__init__(environ, kind=kind)
            free(self)

    bootstrap.App = App  # type: ignore[misc]
    table.WORKFLOWS = {**table.WORKFLOWS, WAITS: waits()}
    if host := os.environ.get(ELSEWHERE):
        owner._here = lambda: f"{host}:unknown:0"  # noqa: SLF001 - nobody else pretends
    essaim()


def _wait(context: Context) -> None:
    time.sleep(float(context.run.input["seconds"]))


if __name__ == "__main__":
    main()
