"""A process of the control plane says that it lives, for as long as it does."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import TYPE_CHECKING

from essaim.engine.owner import this_owner
from essaim.model.errors import EssaimError
from essaim.store.workers import SEEN_EVERY

if TYPE_CHECKING:
    from collections.abc import Collection

    from essaim.store.workers import Workers

log = logging.getLogger(__name__)

#: Seconds that saying goodbye may take.
GOODBYE_WITHIN = 5.0
OTHERS_SEE = "others will see by themselves that this process has ended"


class Presence:
    """Keeps one process among the living, between `start` and `stop`."""

    def __init__(self, workers: Workers, kind: str, sites: Collection[str] = ()) -> None:
        self.id = f"{kind}:{this_owner()}"[-190:]
        self._workers = workers
        self._kind = kind
        self._sites = sites
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="essaim-presence", daemon=True)

    def start(self) -> None:
        """Say so now, and from now on."""
        self._say()
        self._thread.start()

    def stop(self) -> None:
        """Say that it ends; returns in any case, also when the database does not."""
        self._ended.set()
        self._thread.join(GOODBYE_WITHIN)
        if self._thread.is_alive():
            log.warning("no answer from the database; %s", OTHERS_SEE)

    def _loop(self) -> None:
        while not self._ended.wait(SEEN_EVERY):
            try:
                self._say()
            except EssaimError as error:
                log.warning("%s; trying again", error.what)
            except Exception:
                log.exception("cannot say that this process lives")
        try:
            self._workers.gone(self.id)
        except EssaimError as error:
            log.warning("%s; %s", error.what, OTHERS_SEE)

    def _say(self) -> None:
        host = socket.gethostname()
        self._workers.seen(self.id, self._sites, host, os.getpid(), self._kind)
