"""One command on one SSH connection."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

import asyncssh
from typing_extensions import override

from essaim.remote.input import Input

if TYPE_CHECKING:
    from essaim.remote.feed import Feed

#: Seconds of silence after a command's end before its open output is left to whoever holds it.
QUIET = 0.5
#: Seconds a daemon that never falls silent can hold up the command that started it.
LOUDEST = 5.0
#: Bytes kept of what a command prints; a feed still gets everything.
KEPT = 4 * 1024 * 1024
#: Seconds a machine has to accept a command on an open connection.
OPEN_WITHIN = 15.0


class NotStartedError(Exception):
    """The command was never handed over, so that it may be tried on another connection."""


class LostError(Exception):
    """The connection ended while the command ran."""


class Exec(asyncssh.SSHClientSession[bytes]):
    """Collects what a command prints until it has ended and its output is drained."""

    def __init__(self, feed: Feed | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._feed = feed
        self._chunks: list[tuple[bytes, bool]] = []
        self._kept = 0
        self._left_out = 0
        self._exit_code: int | None = None
        self._exited_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.done: asyncio.Future[int] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def output(self) -> str:
        """Stdout and stderr as they came."""
        return self._text(b"".join(chunk for chunk, _ in self._chunks))

    @property
    def stdout(self) -> str:
        """Only stdout."""
        return self._text(b"".join(chunk for chunk, stdout in self._chunks if stdout))

    def _text(self, body: bytes) -> str:
        end = f"\n[{self._left_out} bytes more were not kept]\n" if self._left_out else ""
        return body.decode(errors="replace") + end

    @override
    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan

    @override
    def data_received(self, data: bytes, datatype: int | None) -> None:
        kept = data[: KEPT - self._kept]
        self._kept += len(kept)
        self._left_out += len(data) - len(kept)
        if kept:
            self._chunks.append((kept, datatype is None))
        if self._feed is not None and self.channel is not None:
            self._feed.put(data, self.channel, stdout=datatype is None)
        if self._exit_code is not None:
            self._wait_for_silence()

    @override
    def eof_received(self) -> bool:
        # True keeps our side open: it is the command's life line, see wrap.
        return True

    @override
    def exit_status_received(self, status: int) -> None:
        self._exited(status)

    @override
    def exit_signal_received(self, signal_name: str, *_details: object) -> None:
        number = getattr(signal, f"SIG{signal_name}", 0)
        self._exited(128 + number)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._exit_code is not None:
            self._finish()
        elif not self.done.done():
            self.done.set_exception(LostError(str(exc) if exc else "the channel was closed"))

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()

    async def pour(self, source: Input) -> None:
        """Pass input on as it comes and as the command takes it, then say that it has ended."""
        offset = 0
        # A command that has ended already reads nothing: what it said is what counts.
        with contextlib.suppress(BrokenPipeError):
            while self.channel is not None and (data := await source.read(offset)):
                await self._writable.wait()
                self.channel.write(data)
                offset += len(data)
            if self.channel is not None:
                self.channel.write_eof()

    def _exited(self, code: int) -> None:
        self._exit_code = code
        self._exited_at = time.monotonic()
        self._wait_for_silence()

    def _wait_for_silence(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if time.monotonic() - self._exited_at < LOUDEST:
            self._timer = self._loop.call_later(QUIET, self._silent)
        else:
            self._silent()

    def _silent(self) -> None:
        if self._feed is not None and self._feed.waiting:
            # Not the command is silent: its reader is slow.
            self._exited_at = time.monotonic()
            self._wait_for_silence()
            return
        self._finish()
        self.abort()

    def _finish(self) -> None:
        if not self.done.done() and self._exit_code is not None:
            self.done.set_result(self._exit_code)

    def abort(self) -> None:
        """Give up the channel; the far side then ends the command if it still runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self.channel is not None:
            self.channel.abort()


async def execute(
    connection: asyncssh.SSHClientConnection, line: str, session: Exec, stdin: bytes | Input
) -> int:
    """Run a line to its end and give its exit code; what it prints is in the session."""
    try:
        async with asyncio.timeout(OPEN_WITHIN):
            await connection.create_session(lambda: session, line, encoding=None, request_pty=False)
    except (asyncssh.Error, OSError, TimeoutError) as exc:
        session.abort()
        # Once the channel is open the request may have arrived, whatever was answered.
        kind = NotStartedError if session.channel is None else LostError
        raise kind(str(exc) or "the connection ended") from exc
    except asyncio.CancelledError:
        session.abort()
        raise
    pouring: asyncio.Task[None] | None = None
    try:
        if isinstance(stdin, Input):
            pouring = asyncio.get_running_loop().create_task(session.pour(stdin))
        elif stdin and session.channel is not None:
            # A command that has ended already reads nothing: what it said is what counts.
            with contextlib.suppress(BrokenPipeError):
                session.channel.write(stdin)
                session.channel.write_eof()
        return await session.done
    except BaseException:
        session.abort()
        raise
    finally:
        if pouring is not None:
            pouring.cancel()
