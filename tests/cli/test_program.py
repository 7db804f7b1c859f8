"""Commands in messages are those the user can type: `./essaim` in a checkout, else `essaim`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from essaim.cli.program import localise, program_name, use_program
from essaim.model.errors import MissingExtraError
from essaim.model.extras import IN_CHECKOUT, install_hint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout():
    use_program("./essaim")
    yield
    use_program("essaim")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("essaim runs lists them", "./essaim runs lists them"),
        ("make it: essaim lock STACK", "make it: ./essaim lock STACK"),
        ("run `essaim doctor`", "run `./essaim doctor`"),
        ("who does (essaim students teachers)", "who does (./essaim students teachers)"),
        ("[bold]essaim up[/bold]", "[bold]./essaim up[/bold]"),
        ("SSL_CERT_FILE=x essaim check", "SSL_CERT_FILE=x ./essaim check"),
        ("essaim --prepare compare", "./essaim --prepare compare"),
        ("essaim login A; or: essaim signup A", "./essaim login A; or: ./essaim signup A"),
    ],
)
def test_a_command_is_written_as_it_is_typed(checkout, text, expected):
    assert localise(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "run essaim as the user who owns it",
        "essaim: no stack slurm",
        "./essaim up examples/bare",
        "/opt/lab/essaim up examples/bare",
        "essaim lease until 12",
        "https://git.example.org/essaim up",
        "essaim upgrade",
        "user-essaim run",
        "ESSAIM_HOME=/x",
    ],
)
def test_other_text_is_left_alone(checkout, text):
    assert localise(text) == text


def test_an_installed_program_is_called_essaim():
    assert program_name() == "essaim"
    assert localise("essaim runs lists them") == "essaim runs lists them"


def started_as(home: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = f"from essaim.cli import main; main({name!r})"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )


def test_help_and_usage_errors_name_the_program_as_it_was_called(tmp_path):
    shown = started_as(tmp_path, "./essaim", "up", "--help")
    assert "Usage: ./essaim up" in shown.stdout
    shown = started_as(tmp_path, "./essaim", "--help")
    assert "./essaim up examples/slurm nodes=4" in shown.stdout
    assert " essaim up" not in shown.stdout
    shown = started_as(tmp_path, "./essaim", "up", "--nonsense")
    assert "./essaim up -h" in shown.stderr


def test_a_hint_names_the_program_as_it_was_called(tmp_path):
    (tmp_path / "stack.yaml").write_text("name: empty\n")
    shown = started_as(tmp_path, "./essaim", "verify", str(tmp_path))
    assert "→ make it: ./essaim lock STACK" in shown.stderr, shown.stderr


def test_a_missing_package_of_a_checkout_is_installed_by_the_launcher(checkout):
    assert IN_CHECKOUT
    assert localise(MissingExtraError("no matplotlib", "compare").hint).startswith(
        "./essaim --prepare compare"
    )


def test_a_missing_package_of_a_wheel_is_installed_by_pip():
    assert install_hint("compare", checkout=False) == "pip install 'essaim[compare]'"


def test_no_other_hint_tells_to_use_pip():
    sources = sorted((ROOT / "src/essaim").rglob("*.py"))
    found = [path.name for path in sources if "pip install" in path.read_text()]
    assert found == ["extras.py"]


def test_the_launcher_knows_every_extra():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in extras:
        done = subprocess.run(
            ["/bin/sh", "-n", ROOT / "essaim"], check=True, capture_output=True, text=True
        )
        assert not done.stderr
        assert f" {extra} " in (ROOT / "essaim").read_text().replace("|", " ").replace(")", " ")


LACKS = """
import sys
from pathlib import Path
import essaim.cli, essaim.model.extras
from essaim.model.errors import MissingExtraError

def lacking(**_):
    raise MissingExtraError("figures need matplotlib", "compare")

essaim.model.extras.launcher = lambda: Path("essaim").absolute()  # stands for the checkout's
essaim.cli._command = lambda: lacking
essaim.cli.main("./essaim")
"""


@pytest.mark.parametrize(("answer", "done"), [("y\n", True), ("\n", True), ("n\n", False)])
def test_on_a_terminal_the_missing_extra_is_installed_after_a_question(tmp_path, answer, done):
    import os
    import pty

    script = tmp_path / "essaim"
    script.write_text('#!/bin/sh\necho "$0 $*" >>log\n')
    script.chmod(0o755)
    master, slave = pty.openpty()
    os.write(master, answer.encode())
    ended = subprocess.run(
        [sys.executable, "-P", "-c", LACKS, "compare", "lab"],
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        check=False,
        timeout=60,
    )
    shown = os.read(master, 65536).decode()
    os.close(slave)
    os.close(master)
    assert "→ ./essaim --prepare compare" in shown
    assert "Install it now, and go on? [Y/n]" in shown
    log = tmp_path / "log"
    said = [f"{script} --prepare compare", "./essaim compare lab"] if done else []
    assert (log.read_text().splitlines() if log.exists() else []) == said
    assert ended.returncode == (0 if done else 3)
