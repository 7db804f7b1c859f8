"""What happened, line by line: what broke, what clients asked, and what they were told."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class History:
    """A file that grows by one line of JSON for each thing that happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._lines: list[dict[str, Any]] = []

    def note(self, what: str, **more: Any) -> None:
        line = {"at": round(time.monotonic() - self._began, 2), "what": what, **more}
        with self._lock, self.path.open("a") as file:
            self._lines.append(line)
            file.write(json.dumps(line) + "\n")

    def all(self, what: str = "") -> list[dict[str, Any]]:
        """Everything, or everything of a kind, in order."""
        with self._lock:
            return [line for line in self._lines if what in ("", line["what"])]

    def tail(self, count: int) -> str:
        with self._lock:
            return "\n".join(json.dumps(line) for line in self._lines[-count:])
