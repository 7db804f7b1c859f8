"""A stack comes up through workers, and the command that asked for it only watches."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import time

import pytest

PATIENCE = 300.0


@pytest.mark.timeout(900)
def test_up_waits_for_workers_and_follows_what_they_do(root, brokers, tmp_path):
    broker = brokers("redis")
    broker.forget()
    shared = dataclasses.replace(root, extra={**root.extra, "ESSAIM_BROKER": broker.url})
    said, asking, worker = tmp_path / "said", None, None
    try:
        asking = begin(shared, said, "up", "examples/bare", "nodes=2")
        # Nobody is there: it says so, carries nothing itself, and waits.
        until(lambda: "waits for a worker: none is alive" in said.read_text(), asking, said)
        worker = begin(shared, tmp_path / "worker", "worker")
        assert asking.wait(PATIENCE) == 0, said.read_text()
        assert "bare/nodes-1 up" in said.read_text()
        assert "nothing to change" in shared.types("up", "examples/bare", "nodes=2")
        shared.types("down", "bare", "--yes")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    finally:
        for process in filter(None, (asking, worker)):
            if process.poll() is None:
                process.kill()
                process.wait()


def begin(person, said, *words: str) -> subprocess.Popen[bytes]:
    with said.open("wb") as output:
        return subprocess.Popen(
            person.command(*words), cwd=person.checkout, env=person.env, stderr=output
        )


def until(holds, asking, said) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert asking.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
