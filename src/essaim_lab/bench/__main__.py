"""Measure, beside peers in the same minute; print a table and write `bench.json`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError
from essaim_lab.bench import computer
from essaim_lab.bench.rows import CannotRunError, Row, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: In the order they are run: the quick ones first.
NAMES = (
    *("start", "engine", "planning", "machines", "slurm", "configure"),
    *("courier", "workers", "rolling", "failover", "replicas"),
    *("grants", "access", "beats"),
)

#: Only when named: one installs an emulator, and its machines keep this computer busy for long; the
#: other goes on for as long as 600 machines take on a cluster, if many times faster.
APART = ("libvirt", "school")

#: The one that may be asked to go on for longer.
LASTING = "beats"


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmarks named; 1 when one of them could not run, whatever the others found."""
    asked = _arguments(words)
    about = computer.describe()
    _say(computer.sentence(about))
    rows: dict[str, list[Row]] = {}
    failed: dict[str, str] = {}
    loads: dict[str, float] = {}
    for name in asked.names or NAMES:
        loads[name] = round(os.getloadavg()[0], 2)
        _say(f"{name} … (load {loads[name]})")
        try:
            # One by one: what was measured before a failure stays measured.
            rows[name] = []
            more = {"minutes": asked.minutes} if name == LASTING else {}
            for row in _measure(name)(quick=asked.quick, **more):
                rows[name].append(row)
        except (CannotRunError, EssaimError, OSError) as error:
            failed[name] = str(error)
            _say(f"{name} could not run: {error}")
    sys.stdout.write(table([row for found in rows.values() for row in found]) + "\n")
    for name, why in failed.items():
        sys.stdout.write(f"{name}: could not run: {why}\n")
    document = {
        "computer": about,
        "quick": asked.quick,
        "load_before": loads,
        "figures": {name: [row.document() for row in found] for name, found in rows.items()},
        "could_not_run": failed,
    }
    asked.json.write_text(json.dumps(document, indent=1) + "\n")
    _say(f"written to {asked.json}")
    return 1 if failed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m essaim_lab.bench", description=__doc__)
    known = (*NAMES, *APART)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {' '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="smaller counts: a smoke test")
    parser.add_argument(
        "--minutes",
        type=float,
        default=None,
        help=f"how long `{LASTING}` goes on (2 when not said)",
    )
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"no benchmark called {' '.join(unknown)}; there are: {' '.join(known)}")
    return asked


def _measure(name: str) -> Callable[..., Iterable[Row]]:
    found: Callable[..., Iterable[Row]] = import_module(f"essaim_lab.bench.{name}").measure
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
