"""The Tab key, in the shells people use."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from essaim.cli.completion.words import split
from essaim_lab import computer

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "src/essaim/cli/completion"
PATIENCE = 60.0
#: Stands for the launcher: the same program, in the environment the tests run in.
LAUNCHER = """#!/bin/sh
exec {python} -P -c 'import sys; from essaim.cli import main; main(sys.argv.pop(1))' "$0" "$@"
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A checkout's folder whose store knows stacks, machines, a roster and a lease."""
    place = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "examples", place / "examples")
    shutil.copy(ROOT / "essaim.yaml", place)
    for script in (place / "essaim", place / "bin/essaim"):
        script.parent.mkdir(exist_ok=True)
        script.write_text(LAUNCHER.format(python=sys.executable))
        script.chmod(0o755)
    fill(place / "state")
    return place


def fill(home: Path) -> None:
    import sqlite3

    from essaim.bootstrap import App

    app = App({"ESSAIM_HOME": str(home), "HOME": str(home)})
    for stack, count in (("slurm", 11), ("slow", 1)):
        app.stacks.put_stack(stack, {"name": stack})
        for name in ("controller", *(f"nodes-{number}" for number in range(1, count))):
            app.stacks.put_machine(f"{stack}/{name}", stack, {})
    app.close()
    with contextlib.closing(sqlite3.connect(home / "essaim.db")) as store:
        store.execute("INSERT INTO roster (name, body, updated_at) VALUES ('promo', '{}', 1)")
        store.commit()
    (home / "client/leases").mkdir(parents=True)
    (home / "client/leases/l-3k9x2m7q.json").write_text("{}")


def environment(lab: Path) -> dict[str, str]:
    return {
        "HOME": str(lab),
        "PATH": f"{lab / 'bin'}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "ESSAIM_HOME": str(lab / "state"),
        "ESSAIM_CACHE": str(lab / "cache"),
    }


def prints(lab: Path, *words: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [*words],
        cwd=lab,
        env={**environment(lab), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    return done.stdout


def bash_offers(lab: Path, line: str, program: str = "./essaim") -> list[str]:
    """What bash's own function replies for a line, cut into words as bash does."""
    import re

    words = [each for each in re.split(r"\s+|([=:])", line) if each]
    words += [""] if line.endswith((" ", "=")) else []
    script = f"""
source {SCRIPTS / "essaim.bash"}
COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
_essaim {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return prints(lab, "bash", "--norc", "-c", script).split()


def zsh_or_fish_offers(lab: Path, *words: str) -> list[str]:
    said = prints(lab, "./essaim", "__complete", "zsh", *words)
    return [line.partition("\t")[0] for line in said.splitlines()]


CASES = [
    ("./essaim ver", ["verify"]),
    ("./essaim students sch", ["schedule"]),
    ("./essaim up examples/slurm sch", ["scheduler="]),
    ("./essaim up examples/slurm scheduler=", ["gridengine", "oar", "slurm"]),
    ("./essaim up examples/slurm scheduler=sl", ["slurm"]),
    ("./essaim up examples/slurm nodes=4 size=l", ["large"]),
    ("./essaim up -m examples/slurm sit", ["site="]),
    ("./essaim up --ag", ["--again"]),
    ("./essaim down s", ["slow", "slurm"]),
    ("./essaim run sl", ["slow/", "slurm/"]),
    ("./essaim ssh slurm/nodes-1", ["slurm/nodes-1", "slurm/nodes-10"]),
    ("./essaim cp job.sh slurm/nodes-1", ["slurm/nodes-1", "slurm/nodes-10"]),
    ("./essaim ssh l", ["l-3k9x2m7q"]),
    ("./essaim release ", ["l-3k9x2m7q"]),
    ("./essaim students retry pr", ["promo"]),
    ("./essaim doctor --site l", ["local"]),
    ("./essaim completion f", ["fish"]),
    ("./essaim up exam", ["examples"]),
    ("./essaim nonsense ", []),
    ("./essaim down slurm ", []),
]


@pytest.mark.parametrize(("line", "expected"), CASES, ids=[line for line, _ in CASES])
def test_bash_offers_what_could_come_next(lab, line, expected):
    assert bash_offers(lab, line) == expected


def test_bash_asks_whichever_program_is_completed(lab):
    assert bash_offers(lab, "essaim ver", "essaim") == ["verify"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["up", "examples/slurm", "scheduler="], [f"scheduler={s}" for s in ("gridengine", "oar")]),
        (["ssh", "slow/"], ["slow/controller"]),
        (["up", "exam"], [":folders"]),
        (["students", "apply", ""], [":files"]),
    ],
)
def test_the_other_shells_are_given_whole_words(lab, words, expected):
    found = zsh_or_fish_offers(lab, *words)
    assert found[: len(expected)] == expected


def test_words_come_with_what_they_are(lab):
    assert prints(lab, "./essaim", "__complete", "zsh", "verif").startswith("verify\tProve a run")


@pytest.mark.parametrize("line", ["", "essaim", "essaim 'a", 'essaim "a b', "essaim up \\"])
def test_half_a_line_is_split(line):
    assert split(line)


def test_it_says_nothing_when_something_is_wrong(lab, tmp_path):
    (tmp_path / "essaim.db").write_text("no database")
    for env in (
        {"ESSAIM_HOME": str(tmp_path)},
        {"ESSAIM_HOME": "/nonexistent", "ESSAIM_CACHE": "/proc/nonexistent"},
        {"ESSAIM_DATABASE": "postgresql+psycopg://127.0.0.1:1/none"},
        {"ESSAIM_DATABASE": "nonsense"},
    ):
        assert prints(lab, "./essaim", "__complete", "zsh", "down", "", env=env) == ""
    assert prints(lab, "./essaim", "__complete") == ""


def test_it_loads_nothing_heavy(lab):
    zsh_or_fish_offers(lab, "")  # what commands there are is found out once
    program = (
        "import sys; sys.argv[1:] = ['__complete', 'zsh', 'ssh', 'slurm/'];"
        "from essaim.cli import main; main();"
        "heavy = {'typer', 'rich', 'hydra', 'sqlalchemy', 'yaml', 'httpx', 'ssl'};"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    assert "slurm/nodes-1" in prints(lab, sys.executable, "-P", "-c", program)


def test_the_launcher_prepares_nothing_for_a_tab(tmp_path):
    for file in ("essaim", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / file, tmp_path)
    done = subprocess.run(
        ["./essaim", "__complete", "zsh", "u"], cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_is_installed_and_removed(lab, tmp_path, shell):
    run = [str(lab / "essaim"), "completion", shell]
    env = {**environment(lab), "HOME": str(tmp_path)}

    def does(*words: str) -> None:
        subprocess.run([*run, *words], env=env, check=True, capture_output=True)

    does("--install")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.read_text() == (SCRIPTS / f"essaim.{shell}").read_text()
    does("--uninstall")
    assert not file.exists()


class Typist:
    """Somebody at a shell in a real terminal."""

    def __init__(self, lab: Path, *shell: str) -> None:
        self._pid, self._tty = pty.fork()
        if self._pid == 0:
            os.chdir(lab)
            os.execvpe(shell[0], shell, environment(lab))
        self.seen = ""

    def types(self, text: str) -> None:
        os.write(self._tty, text.encode())

    def waits_for(self, text: str) -> None:
        until = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < until, f"{text!r} is not in {self.seen!r}"
            if select.select([self._tty], [], [], 0.2)[0]:
                self.seen += os.read(self._tty, 65536).decode(errors="replace")

    def close(self) -> None:
        os.close(self._tty)
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


@contextlib.contextmanager
def typist(lab: Path, *shell: str):
    made = Typist(lab, *shell)
    try:
        yield made
    finally:
        made.close()


def test_the_tab_key_in_bash(lab):
    with typist(lab, "bash", "--norc", "--noprofile") as at:
        at.types('PS1="ready> "; source <(./essaim completion bash); echo ready""now\n')
        at.waits_for("readynow")
        at.types("echo a; ./essaim ver\t")
        at.waits_for("./essaim verify ")
        at.types("\x15echo b; ./essaim ssh slurm/nodes-9\t")
        at.waits_for("slurm/nodes-9 ")
        at.types("\x15echo c; ./essaim up examples/slurm sche\tgri\t")
        at.waits_for("scheduler=gridengine ")


def test_the_tab_key_in_zsh(lab):
    with typist(lab, computer.find("zsh", "zsh"), "-f") as at:
        at.types("PS1='ready> '; autoload -Uz compinit; compinit -u -D; ")
        at.types("source <(./essaim completion zsh); echo ready''now\n")
        at.waits_for("readynow")
        at.types("./essaim ver\t")
        at.waits_for("./essaim verify ")
        at.types("\x15./essaim ssh slurm/nodes-9\t")
        at.waits_for("slurm/nodes-9 ")
        at.types("\x15./essaim up examples/slurm sche\tgri\t")
        at.waits_for("gridengine ")


def test_fish_offers_the_same(lab):
    fish = computer.find("fish", "fish")
    script = lab / "essaim.fish"
    script.write_text(prints(lab, "./essaim", "completion", "fish"))
    for line, expected in (
        ("./essaim ver", "verify\tProve a running cluster"),
        ("essaim ssh slow/", "slow/controller\tmachine"),
        ("./essaim up examples/slurm scheduler=g", "scheduler=gridengine"),
        ("./essaim up exampl", "examples/"),
    ):
        asked = f"source {script}; complete -C {shlex.quote(line)}"
        assert expected in prints(lab, fish, "--no-config", "-c", asked)
