"""Does things for many machines at once, so that a slow one delays nobody but itself."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

log = logging.getLogger(__name__)


class Crew:
    """A few threads, started when first needed.  What is under way is not begun a second time."""

    def __init__(self, name: str, width: int) -> None:
        self._name = name
        self._width = width
        self._lock = threading.Lock()
        self._busy: set[Hashable] = set()
        self._threads: ThreadPoolExecutor | None = None

    def see_to(self, what: Hashable, act: Callable[[], None]) -> bool:
        """Have it done soon; False when it is already being done."""
        with self._lock:
            if what in self._busy:
                return False
            self._busy.add(what)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._width, f"essaim-{self._name}")
            self._threads.submit(self._do, what, act)
            return True

    @property
    def busy(self) -> int:
        """How many things are being done, or wait for a thread."""
        return len(self._busy)

    def close(self) -> None:
        """Begin nothing more.  What is under way ends with the connections it uses."""
        with self._lock:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._threads = None
                self._busy.clear()

    def _do(self, what: Hashable, act: Callable[[], None]) -> None:
        try:
            act()
        except EssaimError as error:
            log.debug("%s: %s: %s", self._name, what, error.what)
        except CancelledError:
            log.debug("%s: %s: cut off", self._name, what)
        except Exception:
            log.exception("%s: %s failed", self._name, what)
        finally:
            with self._lock:
                self._busy.discard(what)
