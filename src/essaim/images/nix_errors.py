"""What Nix says when it fails, in our words: whose fault it is, in which file, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.images.nix_parse import line_of
from essaim.model.errors import (
    EssaimError,
    InvalidError,
    Place,
    Problem,
    RejectedError,
    SetupError,
)
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Lines of Nix's own words that are shown when we have none.
_SHOWN = 12

_NO_OPTION = re.compile(r"The option [`'](?P<option>[^'`]+)' does not exist\.")
_BAD_VALUE = re.compile(
    r"A definition for option [`'](?P<option>[^'`]+)' is not of type [`'](?P<type>.+?)'\. "
)
_DEFINED_IN = re.compile(r"- In [`'](?P<file>[^'`]+)'(?:: (?P<value>.*))?")
_ASSERTIONS = re.compile(r"Failed assertions:\n(?P<all>(?:\s*- .+(?:\n|$)(?:\s{9,}\S.*\n)*)+)")
_MISSING = re.compile(
    r"attribute '(?P<name>[^']+)' (?:in selection path '[^']+' not found|missing)"
)
_LACKING = re.compile(r"does not provide attribute (?P<names>.+)")
_UNDEFINED = re.compile(r"undefined variable '(?P<name>[^']+)'")
_SYNTAX = re.compile(r"syntax error, (?P<what>.+)")
_AT = re.compile(r"at (?P<file>/[^\s:]+):(?P<line>\d+)(?::(?P<column>\d+))?:")
_MEANT = re.compile(r"Did you mean (?P<names>[^?]+)\?")
_WARNING = re.compile(r"(?:trace: (?:evaluation )?|evaluation )warning: (?P<what>.+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_UNREACHABLE = (
    r"unable to download|Couldn't resolve|Could not resolve|Temporary failure in name resolution"
    r"|Failed to connect|Couldn't connect|Connection refused|HTTP error 5"
)
_FETCH_HINT = (
    "check network and proxy, or name another computer as the image's `host`; to evaluate only,"
    " point ESSAIM_NIXPKGS at a nixpkgs tree"
)
_NO_STORE = (
    r"creating directory '/nix|'nixbld' specified in 'build-users-group' does not|daemon-socket"
    r"|is not writable|opening lock file|Read-only file system"
)
_NO_KVM = r"features? \{[^}]*kvm|requires? .*features? .*kvm"
#: What is wrong with the computer or the world rather than with the files; what to do about it.
_LACKS = (
    (
        _UNREACHABLE,
        "what it is made from cannot be fetched",
        _FETCH_HINT,
    ),
    (
        _NO_STORE,
        "nix has no store it may write to",
        "install Nix with its daemon, or name another computer as the image's `host`",
    ),
    (
        _NO_KVM,
        "NixOS makes disks in a virtual machine, and this store may not use KVM",
        "build where /dev/kvm is: name such a computer as the image's `host`",
    ),
    (r"No space left on device", "the disk is full", "free some space, then build again"),
    (r"feature '(?:nix-command|flakes)' is disabled", "this Nix knows no flakes", "use Nix 2.4"),
    (r"at least Nix version|upgrade [Nn]ix", "this Nix is too old for it", "use a newer Nix"),
)


def explain(name: str, text: str, near: Callable[[str], Iterable[str]]) -> EssaimError:
    """Turn what Nix printed into an error of ours.

    `near` lists the options there are beside one that is not.
    """
    text = _COLOUR.sub("", text)
    if problems := _problems(text, near):
        return InvalidError(problems)
    said = _own_words(text)
    for pattern, what, hint in _LACKS:
        if re.search(pattern, said):
            return SetupError(f"image {name}: {what}:\n{said}", hint=hint)
    return RejectedError(f"image {name}: nix refuses it:\n{said}")


def warnings_of(text: str) -> list[str]:
    """List what Nix warned about while it evaluated."""
    return [match["what"].strip() for match in _WARNING.finditer(_COLOUR.sub("", text))]


def _problems(text: str, near: Callable[[str], Iterable[str]]) -> list[Problem]:
    if match := _NO_OPTION.search(text):
        option = match["option"]
        hint = _offered(text) or meant(option.rpartition(".")[2], near(option))
        return [
            _of_file(file, option, f"there is no option {option}", hint)
            for file, _value in _definitions(text[match.end() :])
        ]
    if match := _BAD_VALUE.search(text):
        option, kind = match["option"], match["type"]
        return [
            _of_file(file, option, f"option {option} must be a {kind}, not {value}")
            for file, value in _definitions(text[match.end() :])
        ]
    if match := _ASSERTIONS.search(text):
        parts = re.split(r"^\s*- ", match["all"], flags=re.MULTILINE)
        return [Problem(" ".join(part.split())) for part in parts if part.strip()]
    return _names(text)


def _names(text: str) -> list[Problem]:
    if match := _SYNTAX.search(text):
        return [Problem(f"syntax error, {match['what']}", _at(text))]
    if match := _UNDEFINED.search(text):
        return [Problem(f"there is no variable {match['name']}", _at(text), _offered(text))]
    if match := _MISSING.search(text):
        return [Problem(f"there is no attribute {match['name']}", _at(text), _offered(text))]
    if match := _LACKING.search(text):
        # All the names it tried, the one that was meant last.
        wanted = match["names"].split("'")[-2].removesuffix(".drvPath")
        return [Problem(f"the flake has no attribute {wanted}", None, _offered(text))]
    return []


def _definitions(text: str) -> list[tuple[str, str]]:
    return [(match["file"], match["value"] or "that") for match in _DEFINED_IN.finditer(text)]


def _of_file(file: str, option: str, what: str, hint: str = "") -> Problem:
    """Add the line, which Nix does not tell, where it can be found."""
    if line := line_of(Path(file), option):
        return Problem(what, Place(file, line), hint)
    return Problem(f"{file}: {what}", None, hint)


def _at(text: str) -> Place | None:
    match = _AT.search(text)
    return Place(match["file"], int(match["line"])) if match else None


def _offered(text: str) -> str:
    match = _MEANT.search(text)
    return f"did you mean {match['names']}?" if match else ""


def _own_words(text: str) -> str:
    """Give the end of what Nix said, without what it says to everybody."""
    lines = [
        line.rstrip()
        for line in text.splitlines()
        if line.strip() and not re.match(r"\(use '--show-trace'|warning: ", line)
    ]
    start = next((n for n, line in enumerate(lines) if line.startswith("error:")), 0)
    return "\n".join(lines[start:][:_SHOWN])
