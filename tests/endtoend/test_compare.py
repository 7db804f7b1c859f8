"""The same topology in several variants on one workload, measured and reported (R-A5)."""

from __future__ import annotations

import csv
import io
import json
import signal
import time
from pathlib import Path

import pytest

from endtoend.people import Person
from patience import in_test_all

#: Starts every job at once on the one machine there is: a scheduler that a lab brings along.
AT_ONCE = {
    "summary": "at once",
    "controller": "head",
    "node": "head",
    "version": "echo at once 1.0",
    "submit": {
        "array": 'for n in $(seq "$JOBS"); do setsid "$JOB" "$n" >/dev/null 2>&1 & done; echo 1',
        "one": 'setsid "$JOB" "$NUMBER" >/dev/null 2>&1 & echo 1',
        "after": "exit 1",
    },
    "left": 'pgrep -u "$WHO" -f essaim-compare | wc -l',
    "cancel": 'pkill -u "$WHO"',
}


def small_lab(at: Path, *, seconds: str) -> Path:
    """One machine, and a role that fails in one of two variants."""
    lab = at / "small"
    (lab / "compare" / "schedulers").mkdir(parents=True)
    (lab / "compare" / "schedulers" / "atonce.yaml").write_text(json.dumps(AT_ONCE))
    for kind, do in (("good", '"true"'), ("bad", '"false"')):
        (lab / "kind").mkdir(exist_ok=True)
        (lab / "kind" / f"{kind}.yaml").write_text(f"do: {do}\n")
    (lab / "roles" / "head").mkdir(parents=True)
    steps = [{"name": "begin", "env": {"DO": "{{ vars.do }}"}, "do": 'sh -c "$DO"'}]
    (lab / "roles" / "head" / "role.yaml").write_text(
        json.dumps({"vars": {"do": ""}, "run": steps})
    )
    (lab / "stack.yaml").write_text(
        "defaults: [{kind: good}, {size: tiny}, {site: local}, _self_]\nname: small\nimage: base\n"
        "topology: {one: {roles: [base, head]}}\nnetwork: {cidr: 10.9.0.0/24}\n"
        'vars: {head: {do: "${kind.do}"}}\n'
    )
    (lab / "work.yaml").write_text(
        f'jobs: 3\nseconds: {seconds}\ncommand: sleep "$JOB_SECONDS"\nwithin: 120s\n'
    )
    return lab


def stacks(person: Person) -> list[str]:
    return [stack["name"] for stack in json.loads(person.types("status", "--json"))]


def rows(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((out / "results.csv").read_text())))


def state(out: Path) -> dict:
    return json.loads((out / "state.json").read_text())


@pytest.mark.timeout(600)
def test_interrupted_and_killed_it_goes_on_where_it_was(root, tmp_path):
    root.types("image", "build", "base", within=600)
    # Long enough that jobs still run when we, who have heard of them, get our turn.
    lab, out = small_lab(tmp_path, seconds="8"), tmp_path / "out"
    words = ("compare", str(lab), "size.memory=200,300", "--workload", str(lab / "work.yaml"),
             "--out", str(out), "--no-plots")  # fmt: skip

    # Ctrl-C while jobs run: nothing is left standing.
    process = root.begins(*words)
    said = _until(process, "jobs submitted")
    process.send_signal(signal.SIGINT)
    said += process.communicate(timeout=240)[0]
    assert process.returncode == 130, said
    assert "the same command goes on" in said
    assert stacks(root) == []
    assert state(out)["standing"] == []

    # Killed while the second variant's jobs run: it stands, and the first one's result is there.
    process = root.begins(*words)
    _until(process, "memory=300 1/1: 3 jobs submitted")
    process.kill()
    process.communicate()
    assert state(out)["finished"] == [["1-size-memory-200", 1]]
    first = (out / "runs" / "1-size-memory-200.1.json").read_bytes()
    (left,) = stacks(root)
    assert state(out)["standing"] == [left]

    said = root.types(*words)
    assert f"{left}: taking down what an earlier call left" in said
    assert said.count(": raised in") == 1
    assert (out / "runs" / "1-size-memory-200.1.json").read_bytes() == first
    assert stacks(root) == []
    found = rows(out)
    assert [row["variant"] for row in found] == ["size.memory=200", "size.memory=300"]
    for row in found:
        assert row["failed"] == "0"
        assert 8 <= float(row["makespan"]) < 120
    assert "everything asked for is there already" in root.types(*words)


def _until(process, *any_of: str) -> str:
    """Read what a process says until it says one of these."""
    said = ""
    for line in process.stdout:
        said += line
        if any(words in line for words in any_of):
            return said
    raise AssertionError(f"it ended before: {said}")


@pytest.mark.timeout(600)
def test_a_variant_that_cannot_be_raised_does_not_keep_the_other_from_being_measured(
    root, tmp_path
):
    root.types("image", "build", "base", within=600)
    lab, out = small_lab(tmp_path, seconds="0.2"), tmp_path / "out"
    words = ("compare", str(lab), "kind=bad,good", "--workload", str(lab / "work.yaml"),
             "--out", str(out))  # fmt: skip
    said = root.types(*words, code=4)
    assert "bad 1/1: not measured" in said
    assert stacks(root) == []
    (row,) = rows(out)
    assert (row["variant"], row["failed"]) == ("good", "0")
    page = (out / "report.html").read_text()
    assert "bad, repetition 1" in page
    assert "at once 1.0" in page
    for name in ("plot.png", "plot.svg", "timeline.png", "timeline.svg", "results.json"):
        assert (out / name).stat().st_size > 1000


@in_test_all
@pytest.mark.timeout(900)
def test_two_schedulers_on_one_workload(root, tmp_path):
    out = tmp_path / "out"
    words = ("compare", "examples/bench", "scheduler=slurm,gridengine", "nodes=2",
             "workload.jobs=6", "workload.seconds=0.5", "--out", str(out))  # fmt: skip
    began = time.time()
    root.types(*words, within=800)
    assert stacks(root) == []
    checked(out, {"slurm", "gridengine"}, repetitions=1, jobs=6, nodes=2, seconds=0.5)
    data = json.loads((out / "results.json").read_text())
    versions = [each["about"]["version"] for each in data["results"]]
    assert versions[0].startswith("slurm-wlm ")
    assert versions[1].startswith("SGE ")
    images = [each["about"]["images"][0]["digest"] for each in data["results"]]
    page = (out / "report.html").read_text()
    assert all(digest[:16] in page for digest in images)
    # The machines' own clocks say when it was, and it was now.
    for each in data["results"]:
        for ran in each["trial"]["executions"]:
            assert began <= ran["began"] / 1e9 <= ran["ended"] / 1e9 <= time.time()


@in_test_all
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("workload", ["sleep-array", "sleep-each", "chain", "spin"])
def test_three_schedulers_side_by_side(root, tmp_path, workload):
    out = tmp_path / "out"
    words = ("compare", "examples/bench", "scheduler=slurm,gridengine,oar", "nodes=2",
             "size=medium", "workload.cores=2", "workload.jobs=4", "workload.seconds=0.5",
             "--workload", f"workloads/{workload}", "--side-by-side", "--reuse", "--repeat", "2",
             "--out", str(out))  # fmt: skip
    root.types(*words, within=2800)
    assert stacks(root) == []
    names = {"slurm", "gridengine", "oar"}
    checked(out, names, repetitions=2, jobs=4, nodes=2, seconds=0.5, cores=2)


def checked(
    out: Path, names: set[str], *, repetitions: int, jobs: int, nodes: int, seconds: float, cores=1
) -> None:
    """The figures are those the jobs' records give, and the jobs did what they were told."""
    found = rows(out)
    assert {row["variant"] for row in found} == names
    assert len(found) == len(names) * repetitions
    ran = list(csv.DictReader(io.StringIO((out / "jobs.csv").read_text())))
    for row in found:
        mine = [
            job
            for job in ran
            if (job["variant"], job["repetition"]) == (row["variant"], row["repetition"])
        ]
        assert sorted(int(job["job"]) for job in mine) == list(range(1, jobs + 1))
        assert {job["machine"] for job in mine} <= {f"nodes-{n}" for n in range(1, nodes + 1)}
        took = [float(job["ended"]) - float(job["began"]) for job in mine]
        assert min(took) >= seconds
        span = max(float(job["ended"]) for job in mine)
        assert float(row["makespan"]) == pytest.approx(span, abs=0.5)  # but for the clocks
        assert float(row["throughput"]) == pytest.approx(jobs / float(row["makespan"]))
        used = 100 * sum(took) * cores / (nodes * cores * float(row["makespan"]))
        assert float(row["utilisation"]) == pytest.approx(used, abs=0.1)
        assert 0 < float(row["utilisation"]) <= 100
        assert float(row["raise_seconds"] or 1) > 0
        assert row["failed"] == "0"
        assert _most_at_once(mine) <= nodes  # a node of as many cores as a job has room for one


def _most_at_once(jobs: list[dict[str, str]]) -> int:
    moments = [(float(job["began"]), 1) for job in jobs]
    moments += [(float(job["ended"]), -1) for job in jobs]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most
