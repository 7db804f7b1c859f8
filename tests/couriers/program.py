"""`essaim` with three workflows more, which leave a file for each time a step is done.

Run as a program with the arguments of `essaim`.  LEASE shortens leases.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import freezing
from essaim.cli import main
from essaim.engine.execute import Engine
from essaim.engine.workflow import Context, Step, Workflow
from essaim.model.runs import Again, NewRun, RunState, child_id
from essaim.workflows import table


def leave(context: Context) -> dict[str, str]:
    """Leave a trace of its own: who did what, which time."""
    folder = Path(context.run.input["folder"])
    name = f"{context.run.id}={context.step}={os.getpid()}={secrets.token_hex(4)}"
    (folder / name).touch()
    return {"by": str(os.getpid())}


def linger(context: Context) -> dict[str, str]:
    """Stay in the step until somebody says go; freeze meanwhile if told to."""
    done = leave(context)
    folder = Path(context.run.input["folder"])
    freeze = folder / f"freeze-{os.getpid()}"
    while not (folder / "go").exists():
        if freeze.exists():
            freeze.unlink()
            freezing.freeze()
        time.sleep(0.02)
    context.note("went on")
    return done


def pause(context: Context) -> Again | None:
    """Look twice, a moment apart, however long the first look takes."""
    leave(context)
    looks = Path(context.run.input["folder"]).glob(f"{context.run.id}={context.step}=*")
    return Again(0.3) if len(list(looks)) == 1 else None


def spread(context: Context) -> None:
    """Have four children, each waiting for the one before it."""
    keys = [child_id(context.run.id, str(number)) for number in range(4)]
    context.spawn(
        [
            NewRun(
                id=key,
                workflow="short",
                subject=key,
                input=dict(context.run.input),
                parent=context.run.id,
                waits_for=tuple(keys[max(0, number - 1) : number]),
            )
            for number, key in enumerate(keys)
        ]
    )


def gather(context: Context) -> Again | None:
    return Again(60) if any(c.state is not RunState.DONE for c in context.children()) else None


SHORT = Workflow("short", (Step(name="one", do=leave), Step(name="two", do=leave)))
WORKFLOWS = {
    "short": SHORT,
    "lingers": Workflow("lingers", (Step(name="one", do=linger), Step(name="two", do=leave))),
    "pauses": Workflow("pauses", (Step(name="one", do=pause), Step(name="two", do=leave))),
    "family": Workflow("family", (Step(name="one", do=spread), Step(name="two", do=gather))),
    "waits": Workflow("waits", (Step(name="one", do=lambda _context: time.sleep(0.5)),)),
}

if __name__ == "__main__":
    table.WORKFLOWS = {**table.WORKFLOWS, **WORKFLOWS}
    freezing.write_one_by_one()
    Engine.__init__.__kwdefaults__["lease"] = float(os.environ.get("LEASE", "15"))
    main()
