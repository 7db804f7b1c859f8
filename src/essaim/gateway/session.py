"""A shell, command or subsystem of a client, and the same on the machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import asyncssh
from typing_extensions import override

from essaim.gateway.relay import WINDOW, End, Line
from essaim.gateway.sentences import sentence

#: What a session ends with when the gateway ends it, as OpenSSH's own errors do.
FAILED = 255
#: Seconds the end of a command may follow the end of its output.
END_FOLLOWS = 0.2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asked for: a shell when it is neither command nor subsystem."""

    command: str | None = None
    subsystem: str | None = None


class ClientSession(End, asyncssh.SSHServerSession[bytes]):
    """The client's end.  It is accepted at once; the machine's end is tied to it when it is there.

    `begin` is called when the client has said what it wants, `left` when its channel is gone.
    """

    def __init__(
        self,
        line: Line,
        count: Callable[[int], None],
        left: Callable[[ClientSession], None],
        begin: Callable[[ClientSession, Wanted], None],
    ) -> None:
        super().__init__(line, count)
        self._left = left
        self._begin = begin
        self._pty = False
        self._wanted = Wanted()
        self.over = False  #: its end was announced

    @override
    def pty_requested(self, *_details: object) -> bool:
        self._pty = True
        return True

    @override
    def shell_requested(self) -> bool:
        return True

    @override
    def exec_requested(self, command: str) -> bool:
        self._wanted = Wanted(command=command)
        return True

    @override
    def subsystem_requested(self, subsystem: str) -> bool:
        self._wanted = Wanted(subsystem=subsystem)
        return subsystem == "sftp"

    @override
    def session_started(self) -> None:
        if not self.over:
            self._begin(self, self._wanted)

    async def run(
        self,
        upstream: asyncssh.SSHClientConnection,
        wanted: Wanted,
        *,
        message: str,
        line: Line,
        count: Callable[[int], None],
    ) -> None:
        """Start the same on the machine and tie the two together."""
        if self._gone():
            return
        if message and self._pty and wanted == Wanted():
            self.wire.write(_line(message, pty=True))
        machine = MachineSession(self, line, count)
        size = self.wire.get_terminal_size()
        await upstream.create_session(
            lambda: machine,
            wanted.command,
            subsystem=wanted.subsystem,
            env=_passed(self.wire.get_environment()),
            send_env=None,
            request_pty="force" if self._pty else False,
            term_type=self.wire.get_terminal_type(),
            term_size=size,
            term_modes=self.wire.get_terminal_modes(),
            x11_forwarding=False,
            encoding=None,
            window=WINDOW,
        )
        if self._gone():
            machine.wire.close()
            return
        self.tie(machine)
        if self.wire.get_terminal_size() != size:
            self.terminal_size_changed(*self.wire.get_terminal_size())

    def _gone(self) -> bool:
        return self.lost or self.over

    @override
    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self.other is not None:
            self.other.wire.change_terminal_size(width, height, pixwidth, pixheight)

    @override
    def signal_received(self, signal: str) -> None:
        if self.other is not None:
            self.other.wire.send_signal(signal)

    @override
    def break_received(self, msec: int) -> bool:
        if self.other is not None:
            self.other.wire.send_break(msec)
        return True

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._left(self)

    def end(self, why: str) -> None:
        """Show why and close."""
        if self.over or self.lost or self.wire is None:
            return
        self.over = True
        text = "\n".join(f"essaim: {line}" for line in why.splitlines())
        with contextlib.suppress(OSError):  # it has said that nothing more comes
            self.wire.write_stderr(_line(text, pty=self._pty))
        self.wire.exit(FAILED)


class MachineSession(End, asyncssh.SSHClientSession[bytes]):
    """The machine's end."""

    def __init__(self, client: ClientSession, line: Line, count: Callable[[int], None]) -> None:
        super().__init__(line, count)
        self._client = client
        self._status: int | None = None
        self._signal: tuple[str, bool, str, str] | None = None

    @override
    def exit_status_received(self, status: int) -> None:
        # Kept until the channel closes: output may follow.
        self._status = status

    @override
    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._signal = (signal, core_dumped, msg, lang)

    @override
    def _pass_eof(self) -> None:
        # Nearly always the command has ended, and its status and the close follow.  A client that
        # has said and heard that nothing more comes would close before it hears the status.
        asyncio.get_running_loop().call_later(END_FOLLOWS, self._pass_end_of_output)

    def _pass_end_of_output(self) -> None:
        if not self.lost and not self._client.ended:
            super()._pass_eof()

    @override
    def _close_other(self) -> None:
        client = self._client
        if client.over:
            return
        if self._status is not None:
            client.over = True
            client.wire.exit(self._status)
        elif self._signal is not None:
            client.over = True
            client.wire.exit_with_signal(*self._signal)
        else:
            client.end(sentence("cut_off"))


def _passed(given: Mapping[str, str]) -> dict[bytes | str, bytes | str]:
    """Only what says how text is to be shown, as OpenSSH's servers accept by custom."""
    return {key: text for key, text in given.items() if key == "LANG" or key.startswith("LC_")}


def _line(text: str, *, pty: bool) -> bytes:
    """Lines of text; a raw terminal needs the carriage to return."""
    lines = text.splitlines()
    return (("\r\n" + "\r\n".join(lines) + "\r\n") if pty else "\n".join(lines) + "\n").encode()
