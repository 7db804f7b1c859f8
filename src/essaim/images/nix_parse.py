"""Read Nix files without Nix: the first thing that can be said of a flake, on any computer."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.images.inside import environment
from essaim.model.errors import InvalidError, MissingExtraError, Problem, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tree_sitter import Node

#: Characters of a wrong piece of text that are shown.
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Fault:
    """A place in a file that is not Nix.  Lines and columns count from 1."""

    file: Path
    line: int
    column: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.what}"


def files_of(flake: Path) -> list[Path]:
    """List the Nix files of a flake, in order."""
    return sorted(path for path in flake.rglob("*.nix") if path.is_file())


def parse(flake: Path) -> list[Path]:
    """Parse every Nix file and list them; InvalidError names each place that is wrong."""
    files = files_of(flake)
    faults = [fault for file in files for fault in faults_of(file)]
    # Nix knows its language best.  Its word counts where it is there to be asked.
    wrong = [fault for fault in faults if not _nix_accepts(fault.file)]
    if wrong:
        raise InvalidError([Problem(str(fault)) for fault in wrong])
    return files


def faults_of(file: Path) -> list[Fault]:
    """Find the places in a file where it stops being Nix."""
    try:
        source = file.read_bytes()
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error.strerror}") from error
    tree = _parser().parse(source)
    found = [_fault(file, source, node) for node in _confused(tree.root_node)]
    if not source.strip():
        return [Fault(file, 1, 1, "the file is empty")]
    return found


def line_of(file: Path, option: str) -> int | None:
    """Find the line of a file that sets an option, such as `services.openssh.enable`."""
    try:
        source = file.read_bytes()
    except OSError:
        return None
    wanted = option.split(".")
    for node, path in _bindings(_parser().parse(source).root_node, []):
        if path in (wanted, ["config", *wanted]):
            return source[: node.start_byte].count(b"\n") + 1
    return None


def _bindings(node: Node, path: list[str]) -> Iterator[tuple[Node, list[str]]]:
    """List every `name = value`, with the whole name: also what stands within `lib.mkIf`."""
    if node.type == "binding" and (name := node.child_by_field_name("attrpath")) is not None:
        path = path + (name.text or b"").decode(errors="replace").replace('"', "").split(".")
        yield node, path
    for child in node.children:
        yield from _bindings(child, path)


def _parser() -> Any:
    try:
        import tree_sitter  # noqa: PLC0415 - heavy, and only for those who use Nix
        import tree_sitter_nix  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            f"Nix files cannot be parsed here: {error.name} is not installed", "nix"
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_nix.language()))


def _confused(node: Node) -> Iterator[Node]:
    if (node.is_error or node.is_missing) and not _trailing_comma(node):
        yield node
        return
    for child in node.children:
        if child.has_error or child.is_missing:
            yield from _confused(child)


def _trailing_comma(node: Node) -> bool:
    """Whether that is `{ a, b, }:`, which Nix allows and the grammar does not know."""
    within = node.parent
    if node.is_missing and within is not None and within.type == "formal":
        node, within = within, within.parent
    elif node.text != b",":
        return False
    if within is None or within.type != "formals":
        return False
    after = node.next_sibling
    while after is not None and after.type == "comment":
        after = after.next_sibling
    before = node.prev_sibling
    return after is not None and after.type == "}" and before is not None and before.type != "{"


def _fault(file: Path, source: bytes, node: Node) -> Fault:
    before = source[: node.start_byte]
    line = before.count(b"\n") + 1
    column = len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1
    if node.is_missing:
        return Fault(file, line, column, f"{_word(node.type)} is missing after {_last(before)}")
    text = (node.text or b"").decode(errors="replace").strip().partition("\n")[0]
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return Fault(file, line, column, f"`{shown}` is not expected here")


def _word(kind: str) -> str:
    return "a value" if kind == "identifier" else f"`{kind}`"


def _last(before: bytes) -> str:
    """Show the last word before a place."""
    words = before.split()
    return f"`{words[-1].decode(errors='replace')[-_SHOWN:]}`" if words else "the beginning"


def _nix_accepts(file: Path) -> bool:
    path = environment()["PATH"]
    if shutil.which("nix-instantiate", path=path) is None:
        return False
    done = subprocess.run(
        ["nix-instantiate", "--store", "dummy://", "--parse", str(file)],
        capture_output=True,
        env=environment(),
        check=False,
    )
    return done.returncode == 0
