"""Help comes at once, and every command that rents teaches by example."""

from __future__ import annotations

import subprocess
import sys

import pytest

TEACHING = ["signup", "login", "rent", "extend", "release", "leases", "nodes", "users", "events"]


def test_help_loads_nothing_that_talks_to_a_network():
    program = (
        "import sys, essaim.cli.app;"
        "sys.exit(' '.join(m for m in ('httpx', 'ssl', 'uvicorn', 'starlette', 'rich.progress')"
        " if m in sys.modules) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("command", TEACHING)
def test_each_command_shows_how_it_is_typed(command):
    from typer.testing import CliRunner

    from essaim.cli.app import app

    shown = CliRunner().invoke(app, [command, "--help"], prog_name="essaim")
    assert shown.exit_code == 0
    examples = [line for line in shown.output.splitlines() if f"essaim {command}" in line]
    assert len(examples) > 1, shown.output  # the usage line, and one that can be copied
