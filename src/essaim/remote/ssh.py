"""Run commands on machines over SSH, from any thread, over one connection for each machine."""

from __future__ import annotations

import asyncio
import codecs
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from essaim.model.errors import EssaimError, TransientError
from essaim.remote.feed import Feed
from essaim.remote.wrap import far_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from essaim.model.names import MachineName
    from essaim.remote.input import Input
    from essaim.remote.keyring import Keyring
    from essaim.remote.pool import Pool

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a machine is reached, and the only host key that is believed there."""

    name: MachineName
    address: str
    host_key: str
    port: int = 22
    user: str = "root"
    dial: Callable[[], socket.socket] | None = None  #: instead of address and port
    become: tuple[str, ...] = ()  #: words before every command, such as ("sudo", "-n")
    key: str = "user"  #: which one of the keyring logs in


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended.  What it printed is kept out of reprs, for it may be a secret."""

    exit_code: int
    output: str = field(repr=False)  #: stdout and stderr as they came
    stdout: str = field(repr=False)
    seconds: float


class CutOffError(TransientError):
    """A command had begun and its end was not seen; the far side ends it."""

    def __init__(self, what: str, *, hint: str = "", output: str = "", late: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.output = output  #: what it had printed until then
        self.late = late  #: its time was over; otherwise the connection was lost


class _Decoded:
    """Passes bytes on as text; a character may come in two pieces."""

    def __init__(self, on_output: Callable[[str], None]) -> None:
        self._on_output = on_output
        self._decoders = {
            stdout: codecs.getincrementaldecoder("utf-8")("replace") for stdout in (True, False)
        }

    def __call__(self, data: bytes, stdout: bool) -> None:  # noqa: FBT001 - as `on_data` is called
        self._on_output(self._decoders[stdout].decode(data))


class Remote:
    """A synchronous, thread-safe face of one event loop that owns all SSH connections.

    A connection is made when a machine is first talked to, shared by all threads, and made again
    when it was lost and the command in question had not begun.
    """

    def __init__(self, keyring: Keyring, *, connections: int = 32) -> None:
        self._keyring = keyring
        self._connections = connections  #: handshakes at the same time
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: Pool | None = None

    def reach(self, target: Target, *, within: float) -> None:
        """Return once a command can be run there; TransientError says which stage was not reached.

        The stages: a TCP connection, the SSH banner, a login that runs `true`.  A host key other
        than the pinned one is a RejectedError at once.
        """
        self._wait(self._start().reach(target, within=within))

    def run(
        self,
        target: Target,
        command: Sequence[str] | str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes | Input = b"",
        within: float,
        on_output: Callable[[str], None] | None = None,
        on_data: Callable[[bytes, bool], None] | None = None,
    ) -> Result:
        """Run a command to its end; a nonzero exit code is a result, not an error.

        A sequence is a program and its arguments, a string is a shell script.  `within` covers
        connecting as well.  CutOffError when the time is over or the connection was lost while
        it ran: the command is then terminated, unless it has `stdin`, in which case it may run on
        until its time is over.  A daemon that keeps the output open is not waited for: once the
        command itself has ended, the output is read until it is silent for half a second.
        `on_output` is called in the calling thread, as the output comes; `on_data` likewise, with
        the bytes and whether they are of stdout.
        """
        line = far_line(
            command, env=env or {}, become=target.become, within=within, stdin=bool(stdin)
        )
        pool = self._start()
        if on_output is not None:
            on_data = _Decoded(on_output)
        if on_data is None:
            return self._wait(pool.run(target, line, stdin=stdin, within=within))
        feed = Feed(self._running())
        work = pool.run(target, line, stdin=stdin, within=within, feed=feed)
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        future.add_done_callback(lambda _: feed.end())
        try:
            for data, stdout in feed:
                on_data(data, stdout)
            return future.result()
        finally:
            future.cancel()

    def fan_out(
        self,
        targets: Sequence[Target],
        command: Sequence[str] | str,
        *,
        within: float,
        width: int = 20,
        stdin: Input | None = None,
    ) -> Iterator[tuple[Target, Result | EssaimError]]:
        """Run a command on many machines, `width` at a time; yields each as it finishes.

        Every target is yielded once: one machine's trouble is its result, not the end of the rest.
        Each command reads all of `stdin`.
        """
        pool = self._start()
        done: queue.SimpleQueue[tuple[Target, Result | EssaimError] | None] = queue.SimpleQueue()

        async def one(target: Target, turn: asyncio.Semaphore) -> None:
            async with turn:
                try:
                    line = far_line(
                        command,
                        env={},
                        become=target.become,
                        within=within,
                        stdin=stdin is not None,
                    )
                    work = pool.run(target, line, stdin=stdin or b"", within=within)
                    done.put((target, await work))
                except EssaimError as exc:
                    done.put((target, exc))

        async def everyone() -> None:
            turn = asyncio.Semaphore(width)
            await asyncio.gather(*(one(target, turn) for target in targets))

        future = asyncio.run_coroutine_threadsafe(everyone(), self._running())
        future.add_done_callback(lambda _: done.put(None))
        try:
            while (item := done.get()) is not None:
                yield item
            future.result()
        finally:
            future.cancel()

    def drop(self, name: MachineName) -> None:
        """Forget the connection to a machine, because it was rebuilt or is gone."""
        pool = self._pool
        if pool is not None:
            self._wait(pool.drop(name))

    def close(self) -> None:
        """Close every connection and end the thread.  Commands still running are cut off."""
        with self._lock:
            loop, thread, pool = self._loop, self._thread, self._pool
            self._loop = self._thread = self._pool = None
        if loop is None or thread is None or pool is None:
            return
        asyncio.run_coroutine_threadsafe(pool.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _start(self) -> Pool:
        with self._lock:
            if self._pool is None:
                # asyncssh takes 0.3 s to import: only those who talk to machines pay.
                from essaim.remote.pool import Pool  # noqa: PLC0415

                self._loop = asyncio.new_event_loop()
                self._pool = Pool(self._keyring, self._connections)
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="essaim-ssh", daemon=True
                )
                self._thread.start()
            return self._pool

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            raise TransientError("the SSH connections were just closed")
        return loop

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        finally:
            future.cancel()  # an interrupted caller takes its command along
