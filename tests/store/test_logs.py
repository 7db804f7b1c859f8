from __future__ import annotations

from essaim.model.runs import CommandLog
from essaim.store.logs import MOST, CommandLogs, cut


def log(run: str, machine: str = "x/a", output: str = "out") -> CommandLog:
    return CommandLog(
        run=run,
        step="s",
        machine=machine,
        command="echo",
        exit_code=3,
        output=output,
        started_at=1700000000.125,
        seconds=0.5,
    )


def test_logs_come_back_as_they_were_in_order(database):
    logs = CommandLogs(database)
    logs.add([])
    logs.add([log("r", output="é☃\n"), log("r", machine="x/b")])
    assert logs.read(run="r") == [log("r", output="é☃\n"), log("r", machine="x/b")]


def test_a_run_includes_those_below_it_and_no_namesakes(database):
    logs = CommandLogs(database)
    logs.add([log("r"), log("r.a"), log("r.a.b"), log("r2"), log("r-a"), log("R.a")])
    assert [found.run for found in logs.read(run="r")] == ["r", "r.a", "r.a.b"]


def test_logs_of_a_machine_and_the_latest_only(database):
    logs = CommandLogs(database)
    logs.add([log(f"r{number}", machine=f"x/{number % 2}") for number in range(6)])
    assert [found.run for found in logs.read(machine="x/1")] == ["r1", "r3", "r5"]
    assert [found.run for found in logs.read(limit=2)] == ["r4", "r5"]


def test_logs_of_all_machines_of_a_stack(database):
    logs = CommandLogs(database)
    logs.add([log("r1", machine="x/a"), log("r2", machine="x-y/a"), log("r3", machine="x/b")])
    assert [found.run for found in logs.read(machine="x")] == ["r1", "r3"]


def test_long_output_keeps_its_head_and_tail(database):
    logs = CommandLogs(database)
    logs.add([log("r", output="a" * MOST + "b" * MOST)])
    (found,) = logs.read(run="r")
    assert len(found.output) < MOST + 100
    assert found.output.startswith("aaa")
    assert found.output.endswith("bbb")
    assert f"{MOST} of {2 * MOST} bytes are not kept" in found.output


def test_cutting_never_splits_a_character():
    assert cut("é" * 100, most=51).encode().decode().startswith("é" * 12)
    assert cut("x\0y") == "x\N{REPLACEMENT CHARACTER}y"
