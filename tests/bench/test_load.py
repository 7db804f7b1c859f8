"""Clients ask as they should, and what they got is counted right."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter

import pytest

from essaim_lab.bench.load import FAILED, Answer, Client, Tally, closed_loop, percentile


@pytest.mark.parametrize(
    ("times", "share", "found"),
    [([], 99, 0.0), ([3.0], 50, 3.0), ([4.0, 1.0, 2.0, 3.0], 50, 2.0), ([2.0, 1.0], 99, 2.0)],
)
def test_a_percentile_is_one_of_the_times(times, share, found):
    assert percentile(times, share) == found


def test_of_a_hundred_one_may_be_slower():
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0


class Counts:
    """Every third answer is a refusal."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False

    async def ask(self) -> Answer:
        self.asked += 1
        return Answer(409 if self.asked % 3 == 0 else 201, {"n": self.asked}, 0.5)

    async def close(self) -> None:
        self.closed = True


def test_all_requests_are_made_and_failures_are_told_apart():
    clients = [Counts(), Counts()]
    tally = closed_loop(clients, seconds=600, most=30, granted=lambda answer: answer.status == 201)
    assert sum(each.asked for each in clients) == 30
    assert all(each.closed for each in clients)
    assert len(tally.granted) + tally.failed == 30
    assert tally.failed >= 9
    document = tally.document(3.0)
    assert document["cpu"] == 3000 / len(tally.granted)
    assert document["p99"] == 0.5
    assert all(key.startswith("409 ") for key in document["failures"])


def test_nobody_asks_when_the_time_is_over():
    client = Counts()
    tally = closed_loop([client], seconds=0, most=30, granted=lambda _answer: True)
    assert client.asked == 0
    assert tally.rate == 0.0


def test_a_tally_without_requests_has_no_rate():
    assert Tally().document(0.0)["rate"] == 0.0
    assert Tally(seconds=2.0, granted=[1, 2, 3]).rate == 1.5
    assert Tally(failures=Counter(a=2, b=1)).failed == 3


async def asked(keep: bool, times: int) -> tuple[list[Answer], int]:
    """What a client gets from a small server, and how many connections it opened."""
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            said = json.loads(await reader.readexactly(size))
            body = json.dumps({"heard": said}).encode()
            close = b"connection: close" in head.lower()
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            if close:
                break
            if reader.at_eof():
                break

    async def calm(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            try:
                await serve(reader, writer)
            finally:  # also when the loop ends before it has noticed that the client went
                writer.close()

    server = await asyncio.start_server(calm, "127.0.0.1", 0)
    async with server:
        client = Client(server.sockets[0].getsockname()[1], keep=keep)
        answers = [await client.post("/", {"n": n}, {"X": "y"}) for n in range(times)]
        await client.close()
    return answers, opened


@pytest.mark.parametrize(("keep", "connections"), [(True, 1), (False, 3)])
def test_a_client_keeps_its_connection_or_not(keep, connections):
    answers, opened = asyncio.run(asked(keep, 3))
    assert [answer.body for answer in answers] == [{"heard": {"n": n}} for n in range(3)]
    assert {answer.status for answer in answers} == {201}
    assert opened == connections


def test_nobody_there_is_an_answer_too():
    async def ask() -> Answer:
        client = Client(1)  # tcpmux: nobody has it
        return await client.post("/", {}, {})

    answer = asyncio.run(ask())
    assert answer.status == FAILED
    assert "ConnectionRefused" in answer.body
