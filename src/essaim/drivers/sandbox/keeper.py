"""The program that holds a stack: `keeper.py DIRECTORY LOCK-FD READY-FD root|rootless`.

Run by `unshare` as process 1 of new namespaces, with `python -I -S`, so that it depends on nothing
but the standard library and this package.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Make the stack's network, say so on READY-FD, then serve until told to end.

    LOCK-FD holds the stack's lock for as long as this process lives.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from essaim.drivers.sandbox.files import Layout  # noqa: PLC0415 - only now can it be found
    from essaim.drivers.sandbox.service import Keeper  # noqa: PLC0415 - likewise

    directory, lock, ready, mode = sys.argv[1:]
    for fd in (int(lock), int(ready)):
        os.set_inheritable(fd, False)  # noqa: FBT003 - has no name
    keeper = Keeper(Layout(Path(directory)), rootless=mode == "rootless")
    try:
        keeper.open()
    except OSError as error:
        sys.exit(str(error))
    with suppress(BrokenPipeError):  # whoever started it may have died meanwhile
        os.write(int(ready), b"ready")
    os.close(int(ready))
    keeper.run()


if __name__ == "__main__":
    main()
