"""What a comparison writes: data for programs, a page for people that needs nothing else."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import subprocess
import sys
from dataclasses import asdict
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from essaim.model.errors import SetupError
from essaim.plan.comparing import METRICS, Clock, Execution, Submission, Trial, measure
from essaim.usecases.comparing_files import Asked, Folder, summary, trial_of
from essaim.usecases.comparing_report import require_plots, verdict, write_report

S = 10**9
DIGEST = "0123456789abcdef" * 4


def result(name: str, repetition: int, gap: float) -> dict:
    """Eight jobs of a second on two nodes, with a pause between them."""
    luck = random.Random(f"{name} {repetition}")
    ran, free = [], [S, S]
    for job in range(1, 9):
        node = job % 2
        began = free[node] + round(gap * S * luck.uniform(0.9, 1.1))
        free[node] = began + S
        ran.append(
            Execution(
                job=job, machine=f"s/nodes-{node + 1}", began=began, ended=free[node], exit_code=0
            )
        )
    submission = Submission(first=1, last=8, began=S, ended=S + S // 10, exit_code=0)
    trial = Trial(
        jobs=8,
        cores=1,
        slots=2,
        controller="s/controller",
        submissions=[submission],
        executions=ran,
        clocks=[
            Clock(machine="s/controller", offset=0, error=S // 1000),
            Clock(machine="s/nodes-1", offset=5, error=S // 1000),
        ],
    )
    workload = {
        "name": "w", "summary": "some jobs", "jobs": 8, "cores": 1, "seconds": 1.0,
        "submit": "array", "command": "sleep 1 && echo '<done>'", "user": "", "within": 60.0,
    }  # fmt: skip
    about = {
        "overrides": [f"scheduler={name}"],
        "configuration": DIGEST,
        "digest": DIGEST,
        "scheduler": name,
        "version": f"{name} 1.2",
        "images": [{"name": name, "builder": "debian", "digest": DIGEST[::-1]}],
        "site": "local",
        "driver": "sandbox",
        "machines": 3,
        "nodes": 2,
        "cores": 2,
        "memory": 2048,
        "workload": workload,
    }
    return {
        "variant": f"1-{name}",
        "label": name,
        "repetition": repetition,
        "began_at": "2026-01-01T00:00:00+00:00",
        "load": 1.5 * repetition,
        "measures": {"raise_seconds": 4.0, **asdict(measure(trial))},
        "about": about,
        "trial": asdict(trial),
    }


@pytest.fixture
def folder(tmp_path):
    names = {"slurm": 0.1, "<oar>": 2.0}
    variants = tuple(
        {"key": f"1-{name}", "label": name, "overrides": [], "digest": "d"} for name in names
    )
    asked = Asked(
        where="examples/bench", workload="w", side_by_side=True, reuse=False, variants=variants
    )
    with Folder(tmp_path / "out").opened() as its:
        its.begin(asked)
        for name, gap in names.items():
            for repetition in (1, 2, 3):
                its.finish(f"1-{name}", repetition, result(name, repetition, gap))
        its.asked = asked
        yield its


class Page(HTMLParser):
    """What a page refers to, what it says, and whether its tags fit."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.refers: list[str] = []
        self.open: list[str] = []
        self.said = ""
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.refers += [value for key, value in attrs if key in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += data


def test_the_page_is_whole_needs_nothing_and_says_what_was_done(folder):
    write_report(folder, folder.asked, ["oar, repetition 4: <gone>"], plots=True)
    text = (folder.path / "report.html").read_text()
    page = Page(text)
    assert not page.open
    assert page.tags.count("img") == 2
    assert all(each.startswith("data:image/svg+xml;base64,") for each in page.refers)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import", text)
    for wanted in (
        "<oar>",  # escaped in the source, whole for the reader
        "oar, repetition 4: <gone>",
        "3 repetitions, side by side",
        "slurm had the shortest makespan",
        DIGEST[:16],
        DIGEST[::-1][:16],
        "slurm 1.2",
        "echo '<done>'",
        "may still be misplaced by up to 0.002 s",
        "slowed each other",
        "1.5 to 4.5 processes",
        *(metric.title for metric in METRICS),
    ):
        assert wanted in page.said, wanted


def test_the_figures_are_pictures(folder):
    write_report(folder, folder.asked, [], plots=True)
    for name in ("plot", "timeline"):
        assert (folder.path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        figure = ET.parse(folder.path / f"{name}.svg")
        words = "".join(figure.getroot().itertext())
        assert "slurm" in words
        assert "<oar>" in words
    before = (folder.path / "plot.svg").read_bytes()
    write_report(folder, folder.asked, [], plots=True)
    assert (folder.path / "plot.svg").read_bytes() == before  # the same figure, the same bytes


def test_the_data_is_whole(folder):
    files = write_report(folder, folder.asked, [], plots=False)
    assert [file.name for file in files] == [
        "results.csv", "jobs.csv", "results.json", "report.html",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((folder.path / "results.csv").read_text())))
    assert len(rows) == 6
    assert {row["variant"] for row in rows} == {"slurm", "<oar>"}
    jobs = list(csv.DictReader(io.StringIO((folder.path / "jobs.csv").read_text())))
    assert len(jobs) == 6 * 8
    data = json.loads((folder.path / "results.json").read_text())
    assert data["summary"]["1-slurm"]["makespan"]["count"] == 3
    for each in data["results"]:
        its = asdict(measure(trial_of(each["trial"])))
        assert its.items() <= each["measures"].items()  # every figure can be computed again
        (row,) = (
            row
            for row in rows
            if row["variant"] == each["label"] and int(row["repetition"]) == each["repetition"]
        )
        assert float(row["makespan"]) == its["makespan"]
    mine = [job for job in jobs if job["variant"] == "slurm" and job["repetition"] == "1"]
    longest = max(float(job["ended"]) for job in mine)
    assert longest == pytest.approx(data["results"][0]["measures"]["makespan"], abs=1e-5)


def test_a_difference_within_the_spread_is_not_claimed():
    near = [result("a", n, 1.0) for n in (1, 2)] + [result("b", n, 1.001) for n in (1, 2)]
    assert "is within the spread of it" in verdict(near, summary(near))
    far = [result("a", n, 0.0) for n in (1, 2)] + [result("b", n, 1.0) for n in (1, 2)]
    assert "b took 2.0 times as long" in verdict(far, summary(far))


def test_jobs_that_never_ran_do_not_spoil_the_report(folder):
    empty = result("none", 4, 1.0)
    empty["trial"]["executions"] = []
    empty["measures"] = {"raise_seconds": None, **asdict(measure(trial_of(empty["trial"])))}
    empty["variant"] = "1-slurm"
    folder.finish("1-slurm", 4, empty)
    write_report(folder, folder.asked, [], plots=True)
    rows = list(csv.DictReader(io.StringIO((folder.path / "results.csv").read_text())))
    assert [row["makespan"] for row in rows if row["repetition"] == "4"] == [""]


def test_without_matplotlib_it_is_said_at_once_and_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SetupError, match="matplotlib") as caught:
        require_plots()
    assert "--prepare compare" in caught.value.hint


def test_matplotlib_is_imported_only_when_something_is_drawn():
    program = (
        "import sys, essaim.cli.app, essaim.usecases.comparing;"
        "sys.exit('matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
