"""The tree is the architecture."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_arrows_only_point_down():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_no_command_goes_through_a_local_shell(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            pytest.fail(f"{path}:{node.value.lineno} passes shell=")
        if isinstance(node, ast.Attribute) and node.attr in ("system", "popen"):
            assert not (isinstance(node.value, ast.Name) and node.value.id == "os"), path


def test_the_command_line_starts_without_its_heavy_parts():
    heavy = "hydra sqlalchemy asyncssh pydantic alembic jinja2 omegaconf cryptography yaml fastapi"
    program = (
        "import sys, essaim.cli.app;"
        f"found = [m for m in {heavy.split()!r} if m in sys.modules];"
        "sys.exit(' '.join(found) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
