"""Signals, acted upon by a thread.

A handler runs in the midst of whatever the main thread does, which may hold the very lock that the
handler needs: an Event set by a handler while the main thread begins to wait for it hangs for ever.
And a handler does not run at all while the main thread waits, if the system gave the signal to
another thread.  So the signal's number is written where a thread waits for it, which Python does in
the moment a signal comes, whichever thread it came to.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: How one is asked to end, at a terminal and by whoever runs services.
ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def acting(
    action: Callable[[], None],
    *numbers: int,
    once: bool = False,
    before_next: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Let each of these signals be acted upon; with `once`, the next has its usual effect.

    `before_next` is called by the handler itself, before the next signal can end the program.
    """
    written, read = socket.socketpair()
    written.setblocking(False)

    def handle(number: int, _frame: object) -> None:
        if once:
            before_next()
            signal.signal(number, signal.SIG_DFL)

    def act() -> None:
        acted = False
        while number := read.recv(1):
            if number[0] not in numbers:
                continue
            if once and acted:  # the main thread waits, and has not come to its handler yet
                before_next()
                os._exit(128 + number[0])
            acted = True
            action()

    with read:
        thread = threading.Thread(target=act, name="essaim-signals", daemon=True)
        with written:
            thread.start()
            before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
            handlers = {number: signal.signal(number, handle) for number in numbers}
            try:
                yield
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(before)
        thread.join()
