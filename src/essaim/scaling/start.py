"""`python -m essaim.scaling.start FILE PORT COMMAND…`: writes down who it is, and becomes COMMAND.

The replica says itself that it is there.  Whoever started it may be killed at any moment, and the
next one finds it all the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from essaim.scaling import proc


def main(file: Path, port: int, command: list[str]) -> None:
    """Register and go on as the command; raises FileExistsError when the place is taken."""
    pid = os.getpid()
    stat = proc.look(pid)
    record = {
        "boot": proc.boot(),
        "pid": pid,
        "started": stat.started if stat else "",
        "at": time.time(),
        "port": port,
    }
    made = file.with_suffix(f".{pid}")
    made.write_text(json.dumps(record))
    try:
        os.link(made, file)  # whole, or not at all, and never over another
    finally:
        made.unlink()
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
