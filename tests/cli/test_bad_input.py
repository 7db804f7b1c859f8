"""Wrong input gets one clear message and exit code 2, and nothing is made (R-A1, R-A6)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import nursery

ROOT = Path(__file__).parents[2]
STACK = """\
defaults: [{size: tiny}, {site: local}, _self_]
name: odd
image: base
topology:
  one: {roles: [base]}
  many: {count: 2}
network: {cidr: 10.9.0.0/29}
"""


def essaim(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    return nursery.run(words, env=env, cwd=ROOT, timeout=120)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("image: base", "imag: base", ["stack.yaml:3", "imag", "image"]),
        ("count: 2", "count: two", ["stack.yaml:6", "count"]),
        ("roles: [base]", "roles: [bass]", ["stack.yaml:5", "bass", "base"]),
        ("size: tiny", "size: tinny", ["tinny", "tiny"]),
        ("image: base", "image: bse", ["stack.yaml:3", "bse", "base"]),
        ("count: 2", "count: 2, image: !secret none", ["stack.yaml:6", "none"]),
        ("count: 2}", "count: 2}\n  one: {}", ["one", "stack.yaml"]),
        ("count: 2", "count: 2, address: 10.8.0.1", ["10.8.0.1", "10.9.0.0/29"]),
        ("count: 2", "count: 2, after: [many]", ["circle", "stack.yaml:6", "many"]),
        ("count: 2", "count: 200", ["10.9.0.0/29"]),
        ("name: odd", "name: Odd One", ["stack.yaml:2", "Odd One"]),
        ("network: {cidr: 10.9.0.0/29}", "network: {cidr: [1, 2}", ["stack.yaml:7"]),
    ],
)
def test_each_mistake_has_its_message(tmp_path, old, new, said):
    stack = tmp_path / "stack.yaml"
    stack.write_text(STACK.replace(old, new))
    done = essaim("plan", str(stack), home=tmp_path)
    assert done.returncode == 2, done.stderr
    for words in said:
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".local").exists() or not list(tmp_path.glob("**/sandbox/*"))


def test_the_description_these_mistakes_are_made_in_is_itself_right(tmp_path):
    (tmp_path / "stack.yaml").write_text(STACK.replace("/29", "/24"))
    assert essaim("config", "show", str(tmp_path), home=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "examples/nowhere"], "examples/nowhere"),
        (["plan", "examples/slurm", "nods=4"], "nodes"),
        (["plan", "examples/slurm", "scheduler=slrm"], "slurm"),
        (["plan", "examples/slurm", "nodes=[1"], "nodes=[1"),
        (["status", "nothing"], "no stack called nothing"),
        (["runs", "show", "nothing"], "no run nothing"),
        (["up"], "STACK"),
        (["up", "--plan", "nothing"], "no plan nothing"),
        (["config", "explain", "examples/slurm", "topology.node.count"], "topology.nodes.count"),
        (["down", "nothing", "--yes"], "no stack called nothing"),
    ],
)
def test_wrong_words_on_the_command_line(tmp_path, words, said):
    done = essaim(*words, home=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_names_file_line_and_what_was_overridden(tmp_path):
    done = essaim(
        "config", "explain", "examples/slurm", "topology.nodes.count", "nodes=7", home=tmp_path
    )
    assert done.returncode == 0
    assert "examples/slurm/stack.yaml:" in done.stdout
    assert "command line" in done.stdout
    assert "overridden" in done.stdout


def test_errors_are_json_when_json_was_asked_for(tmp_path):
    done = essaim("status", "nothing", "--json", home=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "unknown"
