"""A terminal of 80 columns and 24 lines with a program in it, and what a person sees of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyte

COLUMNS, LINES = 80, 24
CTRL_C = "\x03"
#: Lines that are kept of what has left the screen at its top.
_KEPT = 10_000


class Terminal:
    """A program in a terminal of its own, whose keys reach it as signals do."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, LINES, history=_KEPT, ratio=1)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.raw = b""  #: everything the program wrote
        self._near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        # The terminal controls the program: what is typed there becomes a signal.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            stdin=far,
            stdout=far,
            stderr=far,
            env={"TERM": "xterm-256color", **env},
            cwd=cwd,
        )
        os.close(far)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # Linux says by an error that the last program has left the terminal.
        with contextlib.suppress(OSError):
            while piece := os.read(self._near, 65536):
                with self._lock:
                    self.raw += piece
                    self._stream.feed(piece)

    @property
    def screen(self) -> list[str]:
        """The lines on the screen, without the blanks behind them."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def lines(self) -> list[str]:
        """All lines: those that have left the screen at its top, then those on it."""
        with self._lock:
            gone = [
                "".join(line[at].data for at in range(COLUMNS)).rstrip()
                for line in self._screen.history.top
            ]
            return gone + [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cursor_hidden(self) -> bool:
        with self._lock:
            return bool(self._screen.cursor.hidden)

    def colour_of(self, text: str) -> str:
        """The colour in which the last line on the screen that begins with a text begins."""
        with self._lock:
            for number in reversed(range(LINES)):
                if self._screen.display[number].strip().startswith(text):
                    line = self._screen.buffer[number]
                    first = next(at for at in range(COLUMNS) if line[at].data.strip())
                    return str(line[first].fg)
        raise LookupError(text)

    def waits_for(self, what: str | Callable[[], bool], within: float = 120) -> None:
        """Wait until a text is on the screen, or until a condition holds."""
        deadline = time.monotonic() + within
        while not (what in self.text if isinstance(what, str) else what()):
            if self.process.poll() is not None and not self._reader.is_alive():
                assert what in self.text if isinstance(what, str) else what(), self.text
                return
            assert time.monotonic() < deadline, f"not seen in {within:.0f} s: {what}\n{self.text}"
            time.sleep(0.02)

    def types(self, keys: str) -> None:
        os.write(self._near, keys.encode())

    def ends(self, within: float = 120) -> int:
        """Wait for the program's end; its exit code as a shell would tell it."""
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs:\n{self.text}") from None
        self._reader.join(10)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
        self._reader.join(10)
        os.close(self._near)


@contextlib.contextmanager
def terminal(words: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Iterator[Terminal]:
    """Run a program in a terminal; it is ended when it has not ended by itself."""
    made = Terminal(words, env=env, cwd=cwd)
    try:
        yield made
    finally:
        made.close()
