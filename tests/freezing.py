"""Freezes a process between its writes: others would wait for the rows of one it is frozen in."""

from __future__ import annotations

import signal
import threading
from typing import Any

from essaim.store.database import Database

_WRITING = threading.RLock()


def write_one_by_one() -> None:
    """Let no two threads of this process write at once, so that there is a moment between."""
    write = Database.write

    def guarded(*words: Any) -> Any:
        with _WRITING:
            return write(*words)

    Database.write = guarded


def freeze() -> None:
    """Stop this process, as SIGSTOP does, while none of its threads writes."""
    with _WRITING:  # to this thread, which then goes no further
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
