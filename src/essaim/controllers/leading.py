"""One of all processes scales a service; the others stand by."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from essaim.engine.owner import owner_is_dead
from essaim.model.errors import EssaimError

if TYPE_CHECKING:
    from collections.abc import Callable

    from essaim.store.scaling import Scaling

log = logging.getLogger(__name__)

#: Seconds after which another takes over from one that says nothing.
LEASE = 5.0
#: Seconds between two times it says that it lives, or that a stand-by looks.
PACE = 1.0


class Leader:
    """Tries, in a thread of its own, to be the one who scales; what it does may take its time.

    Not to be believed longer than the lease: after a freeze `epoch` is None before anything else
    can be done, and what is written with an old epoch is refused.
    """

    def __init__(
        self,
        scaling: Scaling,
        service: str,
        owner: str,
        *,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scaling, self._service, self._owner = scaling, service, owner
        self._lease, self._clock = lease, clock
        self._held: tuple[int, float] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"essaim-lead-{service}", daemon=True
        )

    @property
    def epoch(self) -> int | None:
        """The epoch in which this one scales; None while another does."""
        held = self._held
        return held[0] if held and self._clock() < held[1] else None

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def stop(self) -> None:
        """Let another take over at once."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._held = None
        try:
            self._scaling.leave(self._service, self._owner)
        except EssaimError as error:
            log.debug("%s: %s", self._service, error.what)  # its lease runs out by itself

    def try_once(self) -> None:
        """Take it, or keep it."""
        # The lease counts from before the question: the answer may have been long on its way.
        until = self._clock() + self._lease
        epoch = self._scaling.take(self._service, self._owner, self._lease)
        if epoch is None and self._dead():
            epoch = self._scaling.take(self._service, self._owner, self._lease)
        before, self._held = self._held, None if epoch is None else (epoch, until)
        if epoch is not None and (before is None or before[0] != epoch):
            log.info("%s: this process scales it now", self._service)

    def _dead(self) -> bool:
        """Whether the one who scales is a process of this host that is no more."""
        gone = [
            each.owner
            for each in self._scaling.holders()
            if each.service == self._service and owner_is_dead(each.owner)
        ]
        for owner in gone:
            self._scaling.leave(self._service, owner)
        return bool(gone)

    def _run(self) -> None:
        trouble = ""
        while not self._stopped.is_set():
            try:
                self.try_once()
                trouble = ""
            except EssaimError as error:
                if error.what != trouble:
                    log.warning("%s: %s; trying again", self._service, error.what)
                trouble = error.what
            except Exception:
                # A mistake in one try must not end all trying.
                log.exception("%s: cannot say who scales it", self._service)
            self._stopped.wait(PACE)
