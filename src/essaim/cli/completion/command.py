"""Completion for bash, zsh and fish: the command that prints or installs it.

The scripts know nothing: on every Tab they run `essaim __complete SHELL WORDS…`.
"""

from __future__ import annotations

import enum
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from essaim.cli.output import say
from essaim.cli.program import program_name


class ShellName(enum.StrEnum):
    """The shells there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[ShellName, typer.Argument(help="Your shell.")],
    install: Annotated[
        bool, typer.Option("--install", help="Write the script to where your shell looks for it.")
    ] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove it from there.")] = False,
) -> None:
    """Complete commands, stacks, machines, leases, rosters and keys with the Tab key.

    [bold]essaim completion bash --install[/bold] writes the script to the folder of your
    account from which bash loads it; a new shell has it.  [bold]--uninstall[/bold] undoes it.

    [bold]eval "$(essaim completion bash)"[/bold] tries it in this shell alone.
    [bold]essaim completion fish | source[/bold] does in fish.

    It works for [bold]essaim[/bold] and [bold]./essaim[/bold] alike.  For bash the package
    bash-completion loads such files.
    """
    if install and uninstall:
        raise typer.BadParameter("say --install or --uninstall")
    if not install and not uninstall:
        sys.stdout.write(script(shell))
        return
    place = where(shell)
    if uninstall:
        _remove(place)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(script(shell), encoding="utf-8")
    say(f"{place}: written; open a new shell, type {program_name()} and press Tab")
    if shell is ShellName.ZSH:
        say("  → zsh looks there if ~/.zshrc says, before compinit:")
        say(f"    fpath=({place.parent} $fpath); autoload -Uz compinit; compinit")


def script(shell: ShellName) -> str:
    """Return the script that a shell loads."""
    return Path(__file__).with_name(f"essaim.{shell.value}").read_text(encoding="utf-8")


def where(shell: ShellName) -> Path:
    """Return the file of one's own that a shell loads when `essaim` is first completed."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        ShellName.BASH: data / "bash-completion/completions/essaim",
        ShellName.ZSH: data / "zsh/site-functions/_essaim",
        ShellName.FISH: config / "fish/completions/essaim.fish",
    }[shell]


def _remove(place: Path) -> None:
    try:
        place.unlink()
    except FileNotFoundError:
        say(f"{place} is not there")
    else:
        say(f"{place}: removed")
