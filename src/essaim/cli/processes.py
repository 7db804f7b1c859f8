"""What `api`, `controller` and `gateway` have in common: they begin, are seen, and end well."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typing_extensions import override

from essaim.cli.signals import ENDING, acting

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.cli.plane import Part

log = logging.getLogger("essaim")

#: Seconds between two times that the file is touched which says that a process is ready.
TOUCH_EVERY = 5.0
#: Seconds that threads have which still wait for somebody when all parts have ended.
EXIT_WITHIN = 10.0

ReadyFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        envvar="ESSAIM_READY_FILE",
        help="Kept, and touched every 5 s, while this process is ready.",
    ),
]


class JsonLines(logging.Formatter):
    """One JSON object for each line of a log."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "from": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def start_log(kind: str) -> None:
    """Write what happens to stderr, as lines of text or, with ESSAIM_LOG=json, of JSON."""
    handler = logging.StreamHandler()
    plain = logging.Formatter(f"%(asctime)s {kind} %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if os.environ.get("ESSAIM_LOG") == "json" else plain)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)


class Ready:
    """A file that is there, and young, while a process is ready; for those who watch it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="essaim-ready", daemon=True)

    def start(self) -> None:
        """From now on it is ready."""
        if self._path is not None:
            self._path.write_text(f"{os.getpid()}\n")
            self._thread.start()

    def stop(self) -> None:
        """It is no longer."""
        self._ended.set()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _loop(self) -> None:
        while self._path is not None and not self._ended.wait(TOUCH_EVERY):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def live(
    app: App,
    parts: Sequence[Part],
    *,
    ready_file: str = "",
    said: Callable[[], str],
    hurry: Callable[[], None] = lambda: None,
) -> None:
    """Run parts until SIGTERM or SIGINT, then end them in the reverse order.

    The process ends with 0 when all parts did.  A second signal lets it wait for nobody.  What a
    part left, such as a request that a frozen database never answered, does not keep the process:
    it ends with 1, and says what each thread waited for.
    """
    from essaim.usecases.presence import Presence

    ended = threading.Event()

    def end() -> None:
        if ended.is_set():
            hurry()
        ended.set()

    with acting(end, *ENDING), contextlib.ExitStack() as begun:
        begun.callback(app.close)
        for part in (Presence(app.workers, app.kind), *parts, Ready(ready_file)):
            part.start()
            begun.callback(part.stop)
        log.info("%s", said())
        ended.wait()
        log.info("stopping")
    log.info("stopped")
    leave()


def leave() -> None:
    """Let this process end soon, whatever threads of it still wait for."""
    sys.stderr.flush()
    faulthandler.dump_traceback_later(EXIT_WITHIN, exit=True)
