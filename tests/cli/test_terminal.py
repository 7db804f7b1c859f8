"""Colours, widths, questions and the progress display, on terminals and where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from essaim.cli import compare, terminal
from essaim.cli.output import duration, plan_lines, table
from essaim.cli.terminal import fitting, fold, shorten
from essaim.model.plans import Action, Change, Plan
from essaim.plan.comparing import METRICS
from terminal import COLUMNS, CTRL_C, LINES
from terminal import terminal as real_terminal

ROWS = [("lab/one", "on", "base slurm-controller " * 6), ("lab/two", "absent", "base")]
TABLE = f"""
import sys
from essaim.cli.output import table
from essaim.cli.stacks import power_style
made = table({ROWS!r}, ("MACHINE", "POWER", "ROLES"), least=("ROLES",), style=power_style)
sys.stdout.write(made + "\\n")
"""
PLAN = """
from essaim.cli.output import plan_lines, say
from essaim.model.plans import Action, Change, Plan
many = [Change(key=f"n-{k}", action=Action.REMOVE, verb="retire", machine=f"a-long-name/n-{k}",
               reason="no longer in the stack, " * 8) for k in range(1, 90, 2)]
one = Change(key="x", action=Action.ADD, verb="raise", machine="lab/x", reason="not there")
for line in plan_lines(Plan(stack="lab", changes=(one, *many), world="", wanted="")):
    say(line)
"""
#: Many threads report at once, some of them failures, while the display is drawn.
PROGRESS = """
import os, threading, time
from essaim.cli.progress import Progress, shown
from essaim.model.plans import Plan
from essaim.model.runs import Event
progress = Progress(Plan(stack="s" * 40, changes=(), world="", wanted="", seconds=600), live=True)
progress.total = 60
def work(k):
    subject = f"{'s' * 40}/{'machine' * 5}-{k}:{'role' * 9}"
    def tell(kind, **more):
        progress(Event(run=str(k), workflow="configure", subject=subject, parent="p", kind=kind,
                       **more))
    for step in range(20):
        tell("step", step="put", text=f"step {step} " * 20)
        time.sleep(0.01)
    if k % 10 == 0:
        tell("failed", text=f"machine {k} does not answer " * 5)
    elif k % 2:
        tell("done")
with shown(progress):
    threads = [threading.Thread(target=work, args=(k,)) for k in range(60)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)
print("ended")
"""
ASK = """
from essaim.cli.asking import agree
agree("The disk is lost. Go on?", yes=False)
print("agreed")
"""


def run(program: str, **env: str):
    words = [sys.executable, "-c", program]
    return real_terminal(words, env={"PATH": os.environ["PATH"], **env}, cwd=Path("/"))


def piped(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    env = {"PATH": os.environ["PATH"], "TERM": "xterm", **env}
    return subprocess.run(
        words, env=env, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False
    )


def test_a_table_fits_the_terminal_and_colours_the_power_of_machines():
    with run(TABLE) as seen:
        assert seen.ends() == 0
    heading, one, two = filter(None, seen.lines)
    assert heading.split() == ["MACHINE", "POWER", "ROLES"]
    assert one.startswith("lab/one  on      base slurm-controller")
    assert one.endswith("…")
    assert two == "lab/two  absent  base"
    assert b"\x1b[32mon" in seen.raw
    assert b"\x1b[31mabsent" in seen.raw


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_there_are_no_colours_where_nobody_wants_them(env):
    with run(TABLE, **env) as seen:
        assert seen.ends() == 0
    assert b"\x1b" not in seen.raw


def test_what_is_no_terminal_gets_whole_lines_without_colours_and_padding():
    said = piped(TABLE).stdout
    assert "\x1b" not in said
    assert [line.rstrip() for line in said.splitlines()] == said.splitlines()
    assert ROWS[0][2].rstrip() in said
    wide = table([("x" * 200, "1"), ("y", "2")], ("WHAT", "N"))
    assert [len(line) for line in wide.splitlines()] == [35, 203, 35]


def test_a_plan_fits_the_terminal_in_its_colours():
    with run(PLAN) as seen:
        assert seen.ends() == 0
    assert max(map(len, seen.lines)) < COLUMNS
    assert seen.colour_of("retire:") == "red"
    assert b"\x1b[32m  + lab/x" in seen.raw
    change = Change(key="x", action=Action.ADD, verb="raise", machine="lab/x", reason="why " * 40)
    (line,) = plan_lines(Plan(stack="lab", changes=(change,), world="", wanted=""))
    assert "\x1b" not in line


def test_progress_fits_the_terminal_while_many_fail_at_once(tmp_path):
    with run(PROGRESS, GO=str(tmp_path / "go")) as seen:
        seen.waits_for("… and 10 more")
        assert seen.cursor_hidden
        drawn = seen.screen
        (tmp_path / "go").touch()
        assert seen.ends() == 0
    assert max(map(len, drawn)) < COLUMNS
    assert len([line for line in drawn if "configure" in line]) <= LINES - 8
    assert "30 of 60" in "\n".join(drawn)
    failed = [line for line in seen.lines if "✗" in line]
    assert len(failed) == 6
    assert "ended" in seen.text
    assert "━" not in seen.text
    assert not seen.cursor_hidden


@pytest.mark.parametrize(
    ("keys", "code", "said"),
    [("y\n", 0, "agreed"), ("n\n", 1, ""), ("\n", 1, ""), (CTRL_C, 130, "")],
)
def test_a_question_is_answered_by_y_alone(keys, code, said):
    program = f"import essaim.cli.app, typer\n@typer.run\ndef main():\n{indented(ASK)}"
    with run(program) as seen:
        seen.waits_for("[y/N]:")
        seen.types(keys)
        assert seen.ends() == code
    assert said in seen.text
    assert "Traceback" not in seen.text


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())


def test_where_nobody_can_be_asked_it_is_refused():
    # As essaim.cli.main ends a command: with the sentence and the exit code of the error.
    refused = "except EssaimError as error:\n    report(error); sys.exit(error.exit_code)"
    program = (
        "import sys\nfrom essaim.cli import report\nfrom essaim.model.errors import EssaimError"
    )
    done = piped(f"{program}\ntry:\n{indented(ASK)}\n{refused}")
    assert done.returncode == 2
    assert "say --yes" in done.stderr
    assert "Traceback" not in done.stderr


def test_times_are_said_as_people_say_them():
    assert [duration(each) for each in (0.04, 9.96, 61.7, 119.7, 3599.9)] == [
        "0.0 s", "10.0 s", "62 s", "2 min 00 s", "60 min 00 s",
    ]  # fmt: skip


def test_texts_are_shortened_and_folded(monkeypatch):
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"
    monkeypatch.setattr(terminal, "columns", lambda _stream: 30)
    assert fitting("x" * 28) == "x" * 28
    assert fitting("x" * 29) == "x" * 27 + "…"
    assert fold("one two " * 5, indent="  ") == ["  one two one two one two one", "    two one two"]
    monkeypatch.setattr(terminal, "columns", lambda _stream: None)
    assert fold("x " * 100) == ["x " * 100]


@pytest.mark.parametrize("variants", [1, 3, 7])
def test_a_comparison_fits_eighty_columns_with_every_figure(variants):
    measures = {metric.key: 12.345 for metric in METRICS}
    results = [
        {"variant": f"v{k}", "label": f"gridengine nodes={k}", "measures": measures}
        for k in range(variants)
    ]
    said = compare._table(compare_ended(results)).splitlines()
    assert max(map(len, said)) <= COLUMNS
    assert sum(line.count(f"gridengine nodes={k}") for k in range(variants) for line in said)
    shown = [metric for metric in METRICS if not metric.key.endswith(("_p50", "_max"))]
    assert sum(line.count("12") for line in said) == variants * len(shown)


def compare_ended(results):
    from essaim.usecases.comparing import Comparison

    return Comparison(results=results)


@pytest.mark.parametrize(
    "verb", ["retire", "destroy", "rebuild", "unhost", "rehost", "reopen", "remove", "reset"]
)
def test_a_change_says_that_it_destroys_a_disk(verb):
    assert Change(key="x", action=Action.REMOVE, verb=verb).destroys_disk


@pytest.mark.parametrize(
    "verb", ["raise", "start", "configure", "build", "open", "host", "withdraw"]
)
def test_a_change_says_that_it_destroys_none(verb):
    assert not Change(key="x", action=Action.ADD, verb=verb).destroys_disk
