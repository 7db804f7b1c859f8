"""Runs controllers, each in a thread of its own, until stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from essaim.model.errors import EssaimError

log = logging.getLogger(__name__)

#: Seconds after which a controller that failed looks again.
AFTER_TROUBLE = 2.0


class Controller(Protocol):
    """One loop."""

    name: str

    def reconcile(self) -> float:
        """Look at everything, act, and return the seconds until it is worth looking again."""


@runtime_checkable
class Closes(Protocol):
    """A controller with threads of its own."""

    def close(self) -> None:
        """Begin nothing more."""


class Loops:
    """The controllers of one process."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run, args=(each,), name=f"essaim-{each.name}", daemon=True
            )
            for each in controllers
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each finish what it is doing."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for controller in self._controllers:
            if isinstance(controller, Closes):
                controller.close()

    def _run(self, controller: Controller) -> None:
        trouble = ""
        while not self._stopped.is_set():
            try:
                again = controller.reconcile()
                trouble = ""
            except EssaimError as error:
                if error.what != trouble:
                    log.warning("%s: %s; trying again", controller.name, error.what)
                trouble, again = error.what, AFTER_TROUBLE
            except Exception:
                # A mistake in one look must not end all looking.
                log.exception("%s failed", controller.name)
                again = AFTER_TROUBLE
            self._stopped.wait(again)
