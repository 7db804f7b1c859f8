"""Join standard input and output to a domain's console; run as a program: `line URI UUID`.

It is a process of its own because a console may be silent for hours: the client of libvirt 9 lets
another thread's call wait for ever when one thread waits for a stream on the same connection.
Here libvirt's event loop does all, in one thread.

Says `ok` on standard error once the console is open, or else why it is not, and ends when either
side does.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from essaim.drivers.libvirt.sdk import libvirt

_PIECE = 1 << 16
_TYPED, _SHOWN = 0, 1
#: What libvirt gives instead of bytes, or of their number, when it would have to wait.
_LATER = -2


class Line:
    """A console that is open, and what was typed for it and not sent yet."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.open = True
        self._typed = b""
        stream.eventAddCallback(libvirt.VIR_STREAM_EVENT_READABLE, self._on_stream, None)
        events = libvirt.VIR_EVENT_HANDLE_READABLE | libvirt.VIR_EVENT_HANDLE_HANGUP
        libvirt.virEventAddHandle(_TYPED, events, self._on_typed, None)

    def _on_typed(self, _watch: int, _file: int, _events: int, _more: object) -> None:
        piece = os.read(_TYPED, _PIECE)
        if not piece:
            self.open = False
        self._typed += piece
        self._watch_stream()

    def _on_stream(self, stream: Any, events: int, _more: object) -> None:
        try:
            if events & libvirt.VIR_STREAM_EVENT_READABLE:
                self._bring()
            if events & libvirt.VIR_STREAM_EVENT_WRITABLE and self._typed:
                sent = stream.send(self._typed)
                self._typed = self._typed[max(0, sent) :]
                self._watch_stream()
        except (OSError, libvirt.libvirtError):
            self.open = False
        if events & (libvirt.VIR_STREAM_EVENT_ERROR | libvirt.VIR_STREAM_EVENT_HANGUP):
            self.open = False

    def _bring(self) -> None:
        piece = self.stream.recv(_PIECE)
        if piece == _LATER:
            return
        if not piece:
            self.open = False
        while piece:
            piece = piece[os.write(_SHOWN, piece) :]

    def _watch_stream(self) -> None:
        writable = libvirt.VIR_STREAM_EVENT_WRITABLE if self._typed else 0
        self.stream.eventUpdateCallback(libvirt.VIR_STREAM_EVENT_READABLE | writable)


def main() -> None:
    """Connect, say so, and carry bytes both ways."""
    uri, uuid = sys.argv[1:]
    libvirt.virEventRegisterDefaultImpl()
    try:
        connection = libvirt.open(uri)
        stream = connection.newStream(libvirt.VIR_STREAM_NONBLOCK)
        domain = connection.lookupByUUIDString(uuid)
        domain.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_SAFE)
    except libvirt.libvirtError as error:
        sys.exit(str(error))
    line = Line(stream)
    sys.stderr.write("ok\n")
    sys.stderr.flush()
    while line.open:
        libvirt.virEventRunDefaultImpl()


if __name__ == "__main__":
    main()
