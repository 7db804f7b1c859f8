"""What is piped into a command reaches it while it comes, on one machine and on many."""

from __future__ import annotations

import os
import threading
from contextlib import closing, contextmanager

from essaim.remote.input import Input


@contextmanager
def pipe():
    """A pipe whose far end the test writes to."""
    out, into = os.pipe()
    with closing(os.fdopen(into, "wb", buffering=0)) as writer:
        try:
            yield out, writer
        finally:
            os.close(out)


def collect(remote, box, command, stdin, on_data=None):
    seen = {True: b"", False: b""}

    def keep(data, stdout):
        seen[stdout] += data
        if on_data is not None:
            on_data()

    result = remote.run(box.target, command, stdin=stdin, within=60, on_data=keep)
    return result.exit_code, seen[True], seen[False]


def test_a_dialogue_needs_both_ways_at_once(box, remote):
    with pipe() as (out, writer):
        answers = iter([b"two\n", b"three\n"])
        writer.write(b"one\n")

        def answer():
            if (more := next(answers, None)) is not None:
                writer.write(more)
            else:
                writer.close()

        code, stdout, _ = collect(remote, box, ["cat"], Input(out), answer)
    assert (code, stdout) == (0, b"one\ntwo\nthree\n")


def test_bytes_stay_as_they_are_and_stderr_apart(box, remote):
    with pipe() as (out, writer):
        body = bytes(range(256)) * 20_000  # more than any buffer on the way
        thread = threading.Thread(target=lambda: (writer.write(body), writer.close()))
        thread.start()
        code, stdout, stderr = collect(remote, box, "cat; printf '\\377' >&2; exit 3", Input(out))
        thread.join()
    assert (code, stderr) == (3, b"\xff")
    assert stdout == body


def test_a_command_that_reads_nothing_ends_though_the_pipe_stays_open(box, remote):
    with pipe() as (out, _writer):
        assert collect(remote, box, ["echo", "done"], Input(out)) == (0, b"done\n", b"")


def test_a_regular_file_is_read_to_its_end(box, remote, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 300_000)
    with (tmp_path / "file").open("rb") as file:
        assert collect(remote, box, "wc -c", Input(file.fileno()))[1].strip() == b"300000"


def test_each_of_many_machines_gets_all_of_it(boxes, remote):
    body = os.urandom(1_000_000)
    targets = [box.target for box in boxes]
    with pipe() as (out, writer), closing(Input(out, readers=len(targets))) as stdin:
        thread = threading.Thread(target=lambda: (writer.write(body), writer.close()))
        thread.start()
        results = list(remote.fan_out(targets, "wc -c", within=60, width=2, stdin=stdin))
        thread.join()
    assert [result.stdout.strip() for _, result in results] == ["1000000"] * 3


def test_machines_that_read_nothing_end_though_the_pipe_stays_open(boxes, remote):
    targets = [box.target for box in boxes]
    with pipe() as (out, _writer), closing(Input(out, readers=len(targets))) as stdin:
        results = list(remote.fan_out(targets, ["true"], within=60, stdin=stdin))
    assert [result.exit_code for _, result in results] == [0, 0, 0]
