"""Plays one playbook through ansible-runner, as a program: `python -m essaim.remote.player BOX`.

A process of its own, for ansible-runner forks, which a process of many threads must not, and hands
its whole environment on.  What happens is told line by line as JSON on stdout.  It ends the play
when its stdin ends, and removes the box, so that neither outlives whoever asked for it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from essaim.remote.playlog import GATHERING, exit_code_of, output_of

#: What becomes of a task on a host, by the names ansible-runner gives it.
_RESULTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_async_failed": "failed",
}
#: How often the removal of a box is tried: for about ten seconds.
TRIES = 100
_TASKS = ("playbook_on_task_start", "playbook_on_handler_task_start")


def told(event: dict[str, Any]) -> dict[str, Any] | None:
    """Say what an event of ansible-runner means to us; None when it means nothing."""
    kind, data = event.get("event", ""), event.get("event_data") or {}
    if kind in _TASKS:
        return {"kind": "task", "name": data.get("name") or data.get("task") or ""}
    if kind == "playbook_on_no_hosts_matched":
        return {"kind": "nobody"}
    if kind not in _RESULTS:
        text = str(event.get("stdout") or "").strip() if kind in ("verbose", "error") else ""
        return {"kind": "line", "text": text} if text else None
    failed, body = _RESULTS[kind] != "ok", data.get("res") or {}
    if data.get("task") == GATHERING and not failed:
        return None  # hundreds of facts that nobody asked to see
    return {
        "kind": "result",
        "task": data.get("task") or "",
        "host": data.get("host") or "",
        "failed": failed,
        "unreachable": _RESULTS[kind] == "unreachable",
        "ignored": bool(data.get("ignore_errors")),
        "exit_code": exit_code_of(body, failed=failed),
        "output": _output(body),
    }


def _output(body: dict[str, Any]) -> str:
    """Join what a task printed, or what its items did."""
    if body.get("censored"):
        return str(body["censored"])
    items = [output_of(each) for each in body.get("results") or () if isinstance(each, dict)]
    return "\n".join(part for part in (output_of(body), *items) if part)


def _tell(said: dict[str, Any] | None) -> None:
    if said is not None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def _alone() -> bool:
    """Whether whoever started us is gone, or wants no more."""
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def _remove(box: Path) -> None:
    """Remove a box: it holds secrets, and nobody else will."""
    for _ in range(TRIES):
        shutil.rmtree(box, ignore_errors=True)
        if not box.exists():
            return
        time.sleep(0.1)  # processes of the play that are just ending still write into it


def main(box: Path) -> None:
    """Play what lies in a box that `playing` has filled."""
    import ansible_runner  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy

    left: list[bool] = []

    def cancelled() -> bool:
        if not left and _alone():
            left.append(True)
        return bool(left)

    asked = json.loads((box / "play.json").read_text(encoding="utf-8"))

    def handle(event: dict[str, Any]) -> bool:
        _tell(told(event))
        return False  # nothing is written to disk: events hold what tasks were given

    run = ansible_runner.run(
        private_data_dir=str(box),
        project_dir=asked["folder"],
        playbook=asked["playbook"],
        inventory=str(box / "inventory"),
        tags=asked["tags"],
        event_handler=handle,
        cancel_callback=cancelled,
        quiet=True,
    )
    if cancelled():
        _remove(box)
        return
    _tell({"kind": "end", "status": str(run.status), "exit_code": run.rc or 0})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
