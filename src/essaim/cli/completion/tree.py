"""The commands, options and arguments as plain values, kept in a file: Typer takes long to load."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import typing
from pathlib import Path
from typing import Any

from essaim import __version__

#: One command: `help`, `options`, `arguments`, and `commands` below it.
Node = dict[str, Any]

_MARKUP = re.compile(r"\[/?bold\]")


def load() -> Node:
    """Return the whole tree, read from the cache of this version where there is one."""
    from essaim.bootstrap import cache_home

    file = cache_home(os.environ) / "commands.json"
    made_from = _signature()
    with contextlib.suppress(OSError, ValueError, KeyError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["made_from"] == made_from:
            found: Node = kept["tree"]
            return found
    tree = build()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".commands.{os.getpid()}")
        new.write_text(json.dumps({"made_from": made_from, "tree": tree}), encoding="utf-8")
        new.replace(file)
    return tree


def build() -> Node:
    """Read the tree from the application itself."""
    from typer.main import get_command

    from essaim.cli.app import app

    return _node(get_command(app))


def first_sentence(text: str) -> str:
    """Return the first paragraph of a help text in one line, without markup."""
    return " ".join(_MARKUP.sub("", text).strip().partition("\n\n")[0].split())


def _signature() -> str:
    """What the tree was made from: a version, or the files of a checkout."""
    files = sorted(Path(__file__).parents[1].glob("*.py"))
    newest = max(file.stat().st_mtime_ns for file in files)
    return f"{__version__} {len(files)} {newest} {Path(__file__)}"


def choices(param: Any) -> list[str]:
    """Return the values a parameter can have: those of an enumeration, or named in its metavar."""
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    for each in (annotation, *typing.get_args(annotation)):
        if isinstance(each, type) and issubclass(each, enum.Enum):
            return [str(member.value) for member in each]
    named = param.metavar or ""
    return named.split("|") if "|" in named and named == named.lower() else []


def _node(command: Any) -> Node:
    options, arguments = [], []
    for param in command.params:
        if getattr(param, "hidden", False):
            continue
        about = {
            "metavar": param.metavar or "",
            "choices": choices(param),
            "help": first_sentence(getattr(param, "help", "") or ""),
            "many": param.nargs == -1 or getattr(param, "multiple", False),
            "name": param.name,
        }
        if param.param_type_name == "argument":
            arguments.append(about)
        else:
            names = [*param.opts, *param.secondary_opts]
            options.append({**about, "names": names, "flag": bool(param.is_flag)})
    options.append({"names": ["--help", "-h"], "flag": True, "help": "Show this message and exit."})
    commands = {
        name: _node(each)
        for name, each in getattr(command, "commands", {}).items()
        if not each.hidden
    }
    return {
        "help": first_sentence(command.help or ""),
        "options": options,
        "arguments": arguments,
        "commands": commands,
    }
