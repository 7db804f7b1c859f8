"""One API server as a process of its own; says its address, and ends when its input does."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


@contextlib.contextmanager
def replicas(url: str, count: int) -> Iterator[list[str]]:
    """So many servers over one database; gives their addresses."""
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(count):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "api.replica", url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=TESTS,
                    text=True,
                )
            )
            stack.callback(process.stdin.close)
            started.append(process)
        yield [json.loads(process.stdout.readline())["address"] for process in started]
    assert [process.returncode for process in started] == [0] * count


def main(url: str) -> None:
    from api.rig import Plane, options, serving
    from essaim.api.app import create_app

    plane = Plane(url)
    with contextlib.closing(plane), serving(create_app(plane, options())) as address:
        sys.stdout.write(json.dumps({"address": address}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
