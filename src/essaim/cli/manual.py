"""Manual pages, made from the same texts as `--help`: `python -m essaim.cli.manual FOLDER`."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from essaim import __version__

SECTION = 1
_BOLD = re.compile(r"\[bold\](.*?)\[/bold\]", re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_ENVIRONMENT = {
    "ESSAIM_HOME": "Where the journal, keys and disks of machines are; ~/.local/state/essaim.",
    "ESSAIM_CACHE": "Where images are, which can always be built again; ~/.cache/essaim.",
    "ESSAIM_DATABASE": "The database, if not SQLite: mysql+pymysql://… or postgresql+psycopg://….",
    "ESSAIM_BROKER": "The broker workers are told by: redis://… or amqp://….",
    "ESSAIM_SIGNUP": "Who may sign up at this server: invite (the default), approve, open, closed.",
    "ESSAIM_TRUSTED_PROXIES": "Networks of proxies that say where requests come from.",
    "ESSAIM_BREACHED_PASSWORDS": "A file or folder of SHA-1 hashes of passwords to refuse.",
    "ESSAIM_PASSWORD": "The password that signup and login would ask for.",
    "LANG": "Answers to students and teachers are French where this says so.",
}


def pages() -> dict[str, str]:
    """Return every page by the name of its file: `essaim.1`, and one for each command."""
    from typer.main import get_command

    from essaim.cli.app import app

    root = get_command(app)
    context = _context(root, "essaim", None)
    found = {f"essaim.{SECTION}": _main_page(root, context)}
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        if not command.hidden:
            found[f"essaim-{name}.{SECTION}"] = _page(command, _context(command, name, context))
    return found


def write(folder: Path) -> list[Path]:
    """Write every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def _main_page(root: Any, context: Any) -> str:
    lines = [*_heading("essaim", root), *_synopsis([(root, context)]), ".SH DESCRIPTION"]
    lines += _prose(root.help)
    panels: dict[str, list[tuple[str, Any]]] = {}
    for name, command in root.commands.items():
        if not command.hidden:
            panels.setdefault(command.rich_help_panel or "Commands", []).append((name, command))
    lines.append(".SH COMMANDS")
    for panel, commands in panels.items():
        lines.append(f".SS {_escape(panel)}")
        for name, command in commands:
            lines += [".TP", rf"\fBessaim\-{_escape(name)}\fR({SECTION})", *_summary(command)]
    lines += [*_options(root, context), ".SH ENVIRONMENT"]
    for name, about in _ENVIRONMENT.items():
        lines += [".TP", rf"\fB{name}\fR", _text(about)]
    names = [f"essaim-{name}" for name, each in sorted(root.commands.items()) if not each.hidden]
    return "\n".join([*lines, *_see_also(names)]) + "\n"


def _page(command: Any, context: Any) -> str:
    below = [
        (each, _context(each, name, context))
        for name, each in getattr(command, "commands", {}).items()
        if not each.hidden
    ]
    name = context.command_path.replace(" ", "-")
    lines = [*_heading(name, command), *_synopsis([(command, context), *below])]
    lines += [".SH DESCRIPTION", *_prose(command.help), *_arguments(command)]
    lines += _options(command, context)
    if below:
        lines.append(".SH COMMANDS")
    for each, inner in below:
        lines += [f".SS {_escape(inner.command_path)}", *_prose(each.help)]
        lines += _arguments(each, heading="") + _options(each, inner, heading="")
    return "\n".join([*lines, *_see_also(["essaim"])]) + "\n"


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _heading(name: str, command: Any) -> list[str]:
    made = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    about = " ".join(_plain(command.help).partition("\n\n")[0].split()).rstrip(".")
    about = about.replace("`", "")
    day = time.strftime("%Y-%m-%d", made)
    return [
        f'.TH {_escape(name.upper())} {SECTION} "{day}" "Essaim {__version__}" "Essaim"',
        ".nh",
        ".SH NAME",
        _fold(rf"{_escape(name)} \- {_escape(about[0].lower() + about[1:])}"),
    ]


def _synopsis(commands: list[tuple[Any, Any]]) -> list[str]:
    lines = [".SH SYNOPSIS"]
    for command, context in commands:
        if getattr(command, "commands", None) and len(commands) > 1 and command.no_args_is_help:
            continue
        words = " ".join(command.collect_usage_pieces(context))
        lines += [rf"\fB{_escape(context.command_path)}\fR {_escape(words)}", ".br"]
    return lines[:-1]


def _summary(command: Any) -> list[str]:
    return _prose(_plain(command.help).partition("\n\n")[0])


def _arguments(command: Any, heading: str = "ARGUMENTS") -> list[str]:
    lines = [f".SH {heading}"] if heading else []
    found = [each for each in command.params if each.param_type_name == "argument"]
    for each in found:
        if getattr(each, "help", ""):
            lines += [".TP", rf"\fI{_escape(_metavar(each))}\fR", _text(each.help)]
    return lines if len(lines) > bool(heading) else []


def _options(command: Any, context: Any, heading: str = "OPTIONS") -> list[str]:
    lines = [f".SH {heading}"] if heading else []
    for each in command.get_params(context):
        if each.param_type_name != "option" or each.hidden:
            continue
        names = ", ".join(rf"\fB{_escape(name)}\fR" for name in each.opts)
        if each.secondary_opts:
            names += ", " + ", ".join(rf"\fB{_escape(name)}\fR" for name in each.secondary_opts)
        if not each.is_flag:
            names += rf" \fI{_escape(_metavar(each))}\fR"
        lines += [".TP", names, _text(each.help or "") or r"\&"]
    return lines if len(lines) > bool(heading) else []


def _metavar(param: Any) -> str:
    from essaim.cli.completion.tree import choices

    named = param.metavar or "|".join(choices(param)) or param.name.upper().replace("_", "-")
    return str(named)


def _see_also(names: list[str]) -> list[str]:
    listed = ",\n".join(rf"\fB{_escape(name)}\fR({SECTION})" for name in names)
    return [".SH SEE ALSO", listed]


def _prose(text: str | None) -> list[str]:
    """Paragraphs; one that is an example alone is set apart."""
    lines: list[str] = []
    for paragraph in (text or "").strip().split("\n\n"):
        words = " ".join(paragraph.split())
        example = _BOLD.fullmatch(words)
        if example and "[bold]" not in example[1]:
            lines += [".PP", ".RS 4", _text(words), ".RE"]
        else:
            lines += [".PP", _text(words)]
    return lines[1:]  # the first follows its heading


def _text(text: str) -> str:
    """A paragraph in roff, with what is bold in `--help` bold."""
    words = " ".join(text.split())
    parts = _BOLD.split(words)
    marked = "".join(
        rf"\fB{_escape(part)}\fR" if number % 2 else _CODE.sub(_code, _escape(part))
        for number, part in enumerate(parts)
    )
    return _fold(marked)


def _fold(text: str) -> str:
    """Short lines; none begins as a request to roff does."""
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


def _code(found: re.Match[str]) -> str:
    return rf"\fB{found[1]}\fR"


def _plain(text: str | None) -> str:
    return _BOLD.sub(r"\1", text or "").strip()


def _escape(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-").replace("…", r"\&...")


if __name__ == "__main__":
    for page in write(Path(sys.argv[1] if sys.argv[1:] else ".")):
        sys.stdout.write(f"{page}\n")
