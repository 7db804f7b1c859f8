"""What can be told of a command without running it: words, options and files are there."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator

from docs.blocks import ROOT

#: Programs of others that pages show.  What they are told is not ours to check, but for files.
TOOLS = frozenset(
    re.findall(
        r"\S+",
        "ansible-playbook caddy cat cd cp curl docker docker-compose echo exec export git grep kill"
        " lab mariadb mariadb-dump pdnsutil pg_dump psql pveum qm rsync scp sh ssh ssh-keyscan tar",
    )
)
_OPERATORS = frozenset({";", "&", "&&", "|", "||", "{", "}", "(", ")"})
_REDIRECTIONS = frozenset({"<", ">", ">>", ">&", "<<"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_CHOICE = re.compile(r"(?<= )([a-z]+(?:\|[a-z]+)+)(?= )")
_FUNCTION = re.compile(r"^(\w+)\(\) *\{(.*)\}$")
_OURS = ("examples/", "workloads/", "deploy/", "docs/", "tests/", "src/")
_PLACES = ("site=", "bootstrap=")  #: what only another site's driver knows
_COMPOSED = ("up", "plan", "lock", "verify", "compare")


def faults(command: str) -> Iterator[str]:
    """Say what is wrong with a command line, as far as can be told without running it."""
    if function := _FUNCTION.match(command):
        command = function[2]
    if choice := _CHOICE.search(command):  # `start|stop ROSTER`: each of them
        for each in choice[1].split("|"):
            yield from faults(command[: choice.start()] + each + command[choice.end() :])
        return
    # The notation of usage lines: [LOGIN…] may be left out, and repeated.
    command = re.sub(r"\[([A-Z]+)…?\]", r"\1", command)
    for words in _commands(command):
        if words[0] not in ("for", "done"):  # `for NAME in …; do COMMAND; done`
            yield from _simple(words[1:] if words[0] == "do" else words)


def _commands(command: str) -> Iterator[list[str]]:
    """Each simple command of a line, without assignments and redirections."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if token in _REDIRECTIONS:
            next(tokens)
        elif token in _OPERATORS:
            if words:
                yield words
            words = []
        elif words or not _ASSIGNMENT.fullmatch(token):
            words.append(token)


def _simple(words: list[str]) -> Iterator[str]:
    program, *rest = words
    if program in ("./essaim", "essaim"):
        yield from _essaim(rest)
    elif program == "make":
        yield from _make(rest)
    elif program == ".venv/bin/python":
        yield from _python(rest)
    elif program not in TOOLS:
        yield f"unknown program {program}"
    for word in rest:
        if word.startswith(_OURS) and not (ROOT / word.rstrip(":")).exists():
            yield f"there is no {word}"


def _make(rest: list[str]) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) *[:?]?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in rest:
        name, is_variable, _ = word.partition("=")
        if name not in (variables if is_variable else targets):
            yield f"the Makefile knows no {name}"


def _python(rest: list[str]) -> Iterator[str]:
    if rest[0] != "-m" or importlib.util.find_spec(rest[1]) is None:
        yield f"no module for {rest}"
    elif rest[1] == "essaim_lab.bench":
        from essaim_lab.bench.__main__ import _arguments

        try:
            _arguments(rest[2:])
        except SystemExit:
            yield f"wrong arguments {rest[2:]}"


def _essaim(rest: list[str]) -> Iterator[str]:
    if rest[:1] == ["--prepare"]:
        case = (ROOT / "essaim").read_text().partition("case ${2-} in")[2].partition("esac")[0]
        if not re.search(rf"\b{rest[1]}\b", case):
            yield f"the launcher prepares no {rest[1]}"
        return
    from typer import Exit
    from typer._click.exceptions import ClickException

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            params = _parse(_application(), "essaim", rest, None)
    except Exit:
        return
    except ClickException as error:
        yield f"essaim {' '.join(rest)}: {error.format_message()}"
        return
    if rest[0] in _COMPOSED and params.get("where"):
        yield from _composed(params)


@functools.cache
def _application():
    from typer.main import get_command

    from essaim.cli.app import app

    return get_command(app)


def _parse(command, name, words, parent) -> dict:
    """What a command line means to the real application; raises what it would say."""
    context = command.make_context(name, list(words), parent=parent)
    left = [*getattr(context, "_protected_args", []), *context.args]
    if not hasattr(command, "commands") or not left:
        return context.params
    found, inner, after = command.resolve_command(context, left)
    return _parse(inner, found, after, context)


def _composed(params: dict) -> Iterator[str]:
    """The overrides shown are those of the stack shown; sites are the reader's."""
    from essaim.config.compose import compose
    from essaim.model.errors import EssaimError

    if not params["where"].startswith(_OURS):
        return
    given = [each for each in params.get("overrides") or [] if not each.startswith(_PLACES)]
    first = [re.sub(r"^(\w+=[^,]*),.*", r"\1", each) for each in given]  # one of a sweep
    try:
        compose(str(ROOT / params["where"]), first)
    except EssaimError as error:
        yield f"{params['where']} {' '.join(given)}: {error.what}"
