"""The program that holds a stack: `keeper.py DIRECTORY READY-FD root|rootless`.

Run by `unshare` as process 1 of new namespaces, with `python -I -S`, so that it depends on nothing
but the standard library and this package.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path


def main() -> None:
    """Take the stack's lock, make its network, say so on READY-FD, then serve until told to end."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from essaim.drivers.sandbox.files import Layout  # noqa: PLC0415 - only now can it be found
    from essaim.drivers.sandbox.service import Keeper  # noqa: PLC0415 - likewise

    directory, ready, rootless = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "rootless"
    layout = Layout(Path(directory))
    lock = os.open(layout.keeper_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(ready, b"another")
        return
    keeper = Keeper(layout, rootless=rootless)
    try:
        keeper.open()
    except OSError as error:
        sys.exit(str(error))
    os.write(ready, b"ready")
    os.close(ready)
    keeper.run()


if __name__ == "__main__":
    main()
