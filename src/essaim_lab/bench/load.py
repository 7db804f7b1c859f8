"""Many HTTP clients in one process: what each asks is up to the caller, what it cost is counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

#: Whoever has waited so long has got nothing.
LONGEST = 120.0
FAILED = 0  #: the status of a request that was not answered at all


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    status: int
    body: Any
    seconds: float


class Client:
    """One HTTP/1.1 client with one connection, which it opens when it needs it.

    As little as does the work: client and server share the cores of this computer.
    """

    def __init__(self, port: int, *, keep: bool = True, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._keep = keep
        self._tls = tls
        # A certificate is for a name, and whoever shows it serves that name alone.
        self._host = "localhost" if tls else "127.0.0.1"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: object, headers: Mapping[str, str]) -> Answer:
        """Ask, and wait for all of the answer; status 0 when there is none."""
        return await self._whole("POST", path, json.dumps(body).encode(), headers)

    async def get(self, path: str, headers: Mapping[str, str]) -> Answer:
        """Look, as `post` asks."""
        return await self._whole("GET", path, b"", headers)

    async def _whole(self, verb: str, path: str, said: bytes, headers: Mapping[str, str]) -> Answer:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(LONGEST):
                if self._streams is not None and self._ended():
                    await self.close()  # the server has closed it meanwhile, as it may
                status, data = await self._ask(verb, path, said, headers)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            await self.close()
            return Answer(FAILED, repr(error), time.perf_counter() - began)
        if not self._keep:
            await self.close()
        took = time.perf_counter() - began
        return Answer(status, _read(data), took)

    async def _ask(
        self, verb: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        if self._streams is None:
            name = self._host if self._tls else None
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._tls, server_hostname=name
            )
        reader, writer = self._streams
        said = {"Host": self._host, "Content-Type": "application/json", **headers}
        said["Content-Length"] = str(len(body))
        said["Connection"] = "keep-alive" if self._keep else "close"
        lines = [f"{verb} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in said.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        told = dict(_header(line) for line in head.split(b"\r\n")[1:] if line)
        if b"transfer-encoding" in told:
            raise ValueError(f"{verb} {path} is answered in pieces")
        data = await reader.readexactly(int(told.get(b"content-length", b"0")))
        if told.get(b"connection", b"").lower() == b"close":
            await self.close()
        return status, data

    def _ended(self) -> bool:
        return self._streams is not None and self._streams[0].at_eof()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                return  # it was gone already


class Asks(Protocol):
    """Somebody who asks for one thing after another."""

    async def ask(self) -> Answer:
        """Ask once."""

    async def close(self) -> None:
        """Let go of the connection."""


@dataclass(slots=True)
class Tally:
    """What many clients got."""

    seconds: float = 0.0  #: from the first request to the last answer
    granted: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  #: of those that were granted
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Granted each second."""
        return len(self.granted) / self.seconds if self.seconds else 0.0

    @property
    def failed(self) -> int:
        """How many were not granted."""
        return self.failures.total()

    def document(self, cpu: float) -> dict[str, Any]:
        """Give it as JSON says it; `cpu` seconds become the milliseconds that each grant cost."""
        return {
            "cpu": 1000 * cpu / max(1, len(self.granted)),
            "rate": self.rate,
            "granted": len(self.granted),
            "failed": self.failed,
            "p50": percentile(self.times, 50),
            "p99": percentile(self.times, 99),
            "seconds": self.seconds,
            "failures": dict(self.failures.most_common(5)),
        }


def percentile(times: Sequence[float], share: float) -> float:
    """Give the least time that so many percent did not exceed; 0 when there are none."""
    if not times:
        return 0.0
    ranked = sorted(times)
    return ranked[min(len(ranked) - 1, -(-len(ranked) * int(share) // 100) - 1)]


def closed_loop(
    clients: Sequence[Asks], *, seconds: float, most: int, granted: Callable[[Answer], bool]
) -> Tally:
    """Let every client ask again as soon as it is answered, for some time or `most` requests.

    `granted` says whether an answer is what was asked for; all others are failures.
    """
    return asyncio.run(_closed_loop(clients, seconds, most, granted))


async def _closed_loop(
    clients: Sequence[Asks], seconds: float, most: int, granted: Callable[[Answer], bool]
) -> Tally:
    tally = Tally()
    left = most
    began = time.perf_counter()

    async def one(client: Asks) -> None:
        nonlocal left
        while left > 0 and time.perf_counter() - began < seconds:
            left -= 1
            answer = await client.ask()
            if granted(answer):
                tally.granted.append(answer.body)
                tally.times.append(answer.seconds)
            else:
                tally.failures[f"{answer.status} {str(answer.body)[:120]}"] += 1

    await asyncio.gather(*(one(client) for client in clients))
    tally.seconds = time.perf_counter() - began
    for client in clients:
        await client.close()
    return tally


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
