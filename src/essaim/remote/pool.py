"""One SSH connection for each machine, shared by everybody.  Runs inside one event loop."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import asyncssh

from essaim.model.errors import TransientError
from essaim.remote.link import Progress, Stage, connect, missing
from essaim.remote.private_keys import PrivateKeys
from essaim.remote.session import Exec, LostError, NotStartedError, execute
from essaim.remote.ssh import CutOffError, Result

if TYPE_CHECKING:
    from essaim.model.names import MachineName
    from essaim.remote.feed import Feed
    from essaim.remote.input import Input
    from essaim.remote.keyring import Keyring
    from essaim.remote.ssh import Target

#: Commands at once on one connection; OpenSSH's MaxSessions is 10 by default.
SESSIONS = 8
#: Seconds between the first two tries to reach a machine, and for its first banner; both grow.
FIRST_PAUSE, FIRST_PATIENCE = 0.05, 4.0
#: Seconds to wait for a banner when nobody expects the machine to be booting.
BANNER_WITHIN = 20.0

# Its info level prints whole command lines.
asyncssh.set_log_level("WARNING")


class _Link:
    """A machine's connection, perhaps still being made."""

    def __init__(
        self,
        target: Target,
        task: asyncio.Task[asyncssh.SSHClientConnection],
        progress: Progress,
    ) -> None:
        self._target = target
        self.task = task
        self.progress = progress
        self.sessions = asyncio.Semaphore(SESSIONS)
        self.busy = 0
        self.retired = False

    def serves(self, target: Target) -> bool:
        """Say whether it leads where the target is now, and is not known to be dead."""
        mine = self._target
        same = (mine.address, mine.port, mine.user, mine.host_key) == (
            target.address,
            target.port,
            target.user,
            target.host_key,
        )
        if not same or self.retired:
            return False
        if not self.task.done():
            return True
        return (
            not self.task.cancelled()
            and self.task.exception() is None
            and not self.task.result().is_closed()
        )

    def retire(self) -> None:
        """Take no more commands; close as soon as the last one ends."""
        self.retired = True
        if not self.busy:
            self.close()

    def close(self) -> None:
        self.task.cancel()
        if self.task.done() and not self.task.cancelled() and self.task.exception() is None:
            self.task.result().abort()


class Pool:
    """Connections by machine name.  Every method must be called in the same event loop."""

    def __init__(self, keyring: Keyring, connections: int) -> None:
        self._keyring = keyring
        self._keys: dict[str, PrivateKeys] = {}
        self._handshakes = asyncio.Semaphore(connections)
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix="essaim-dial")
        self._links: dict[MachineName, _Link] = {}

    async def reach(self, target: Target, *, within: float) -> None:
        """Try until a command runs there; see `Remote.reach`."""
        began = time.monotonic()
        last: TransientError | None = None
        stage = Stage.TCP
        pause, patience = FIRST_PAUSE, FIRST_PATIENCE
        while (left := began + within - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._log_in(target, banner_within=patience)
                return
            except TransientError as exc:
                last, stage = exc, self._stage(target)
            except TimeoutError:
                # A try cut short says more than the last whole one only if it came further.
                if last is None or self._stage(target) > stage:
                    last = self._overdue(target, within)
                break
            await asyncio.sleep(min(pause, max(0.0, began + within - time.monotonic())))
            # A sandbox answers within milliseconds, a virtual machine within a minute.
            pause, patience = min(pause * 1.5, 1.0), min(patience + 2, BANNER_WITHIN)
        raise TransientError(
            f"{last.what if last else target.name} (tried for {within:g} s)",
            hint=f"see whether {target.name} runs: essaim status {target.name.stack}",
        ) from last

    async def _log_in(self, target: Target, *, banner_within: float) -> None:
        link = await self._link(target, banner_within=banner_within)
        try:
            code = await self._on(link, Exec(None), "true", b"")
        except (NotStartedError, LostError) as exc:
            link.retire()
            raise TransientError(f"{target.name}: login: no session: {exc}") from exc
        if code:
            raise TransientError(f"{target.name}: login: `true` exits {code}")

    async def run(
        self,
        target: Target,
        line: str,
        *,
        stdin: bytes | Input = b"",
        within: float,
        feed: Feed | None = None,
    ) -> Result:
        """Run a line to its end; see `Remote.run`."""
        session = Exec(feed)
        began = time.monotonic()
        try:
            async with asyncio.timeout(within):
                code = await self._try_twice(target, session, line, stdin)
        except TimeoutError as exc:
            if session.channel is None:
                raise self._overdue(target, within) from exc
            raise CutOffError(
                f"{target.name}: command did not end in {within:g} s",
                output=session.output,
                late=True,
            ) from exc
        except LostError as exc:
            raise CutOffError(
                f"{target.name}: connection lost while a command ran: {exc}",
                output=session.output,
            ) from exc
        return Result(
            exit_code=code,
            output=session.output,
            stdout=session.stdout,
            seconds=time.monotonic() - began,
        )

    async def _try_twice(
        self, target: Target, session: Exec, line: str, stdin: bytes | Input
    ) -> int:
        """Run the line; on a new connection when the pooled one turns out to be dead."""
        link = await self._link(target)
        try:
            return await self._on(link, session, line, stdin)
        except NotStartedError:
            link.retire()
        link = await self._link(target)
        try:
            return await self._on(link, session, line, stdin)
        except NotStartedError as exc:
            raise TransientError(f"{target.name}: no SSH session: {exc}") from exc

    async def _on(self, link: _Link, session: Exec, line: str, stdin: bytes | Input) -> int:
        link.busy += 1
        try:
            async with link.sessions:
                return await execute(link.task.result(), line, session, stdin)
        except asyncio.CancelledError:
            if session.channel is None:
                # A channel may yet be opened there that nobody will close.
                link.retire()
            raise
        finally:
            link.busy -= 1
            if link.retired and not link.busy:
                link.close()

    async def _link(self, target: Target, *, banner_within: float = BANNER_WITHIN) -> _Link:
        """Give a live link, made by the first who asks and awaited by all others."""
        link = self._links.get(target.name)
        if link is None or not link.serves(target):
            if link is not None:
                link.retire()
            progress = Progress()
            making = self._connect(target, progress, banner_within)
            link = _Link(target, asyncio.get_running_loop().create_task(making), progress)
            self._links[target.name] = link
            # Whoever asked may have gone: then nobody else looks at how it ended.
            link.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            # Shielded: one caller's end of patience must not cost the others their connection.
            await asyncio.shield(link.task)
        except asyncio.CancelledError:
            if link.task.cancelled():
                raise TransientError(f"{target.name}: the connection was dropped") from None
            raise
        return link

    async def _connect(
        self, target: Target, progress: Progress, banner_within: float
    ) -> asyncssh.SSHClientConnection:
        async with self._handshakes:
            keys = self._private_keys(target.key).read()
            return await connect(
                target, keys, self._executor, progress, banner_within=banner_within
            )

    def _private_keys(self, name: str) -> PrivateKeys:
        if name not in self._keys:
            self._keys[name] = PrivateKeys(partial(self._keyring.paths, name))
        return self._keys[name]

    def _overdue(self, target: Target, within: float) -> TransientError:
        """Name the stage that took so long."""
        return missing(target, self._stage(target).text, f"no answer in {within:g} s")

    def _stage(self, target: Target) -> Stage:
        link = self._links.get(target.name)
        return link.progress.stage if link else Stage.TCP

    async def drop(self, name: MachineName) -> None:
        """Forget a machine's connection and cut off what runs on it."""
        link = self._links.pop(name, None)
        if link is not None:
            link.retired = True
            link.close()

    async def close(self) -> None:
        """Close every connection."""
        for name in list(self._links):
            await self.drop(name)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)
