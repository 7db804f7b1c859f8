"""The agent is one file that runs anywhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from essaim import agent
from essaim.agent import PARTS, source


def test_the_parts_make_one_file_without_clashes():
    tree = ast.parse(source(), feature_version=(3, 8))
    names = [node.name for node in tree.body if hasattr(node, "name")]
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names += [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]
    assert sorted(names) == sorted(set(names))
    assert "essaim.agent" not in source()
    assert len(PARTS) == len(list(Path(agent.__file__).parent.glob("[a-z]*.py")))


def test_it_needs_nothing_but_the_standard_library():
    found = set()
    for node in ast.walk(ast.parse(source())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    assert found <= sys.stdlib_module_names


def test_the_help_teaches(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text(source())
    for words, part in (((), "sudo python3 agent.py join"), (("join",), "essaim nodes enrol")):
        done = subprocess.run(
            [sys.executable, "-I", path, *words, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert part in done.stdout
