"""Where Debian packages come from: what the user says, or what this computer itself uses."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIRROR_VARIABLE = "ESSAIM_DEBIAN_MIRROR"
_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<uri>\S+)\s+(?P<rest>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One line of sources.list."""

    uri: str
    suite: str
    components: tuple[str, ...]
    keyring: str = ""  #: a file; the computer's own keyring when empty

    def __str__(self) -> str:
        options = f"[signed-by={self.keyring}] " if self.keyring else ""
        return f"deb {options}{self.uri} {self.suite} {' '.join(self.components)}"


def sources_for(suite: str, settings: Mapping[str, Any], apt: Path = Path("/etc/apt")) -> list[str]:
    """List the lines of sources.list an image of that suite is built from.

    In this order: the image's setting `mirror`, the environment, the computer's own sources.
    """
    mirror = settings.get("mirror") or os.environ.get(MIRROR_VARIABLE)
    if mirror:
        components = tuple(settings.get("components", ("main",)))
        return [str(Source(uri=str(mirror), suite=suite, components=components))]
    known = [source for source in read_sources(apt) if "main" in source.components]
    lines = [str(source) for source in _of(suite, known)]
    if not lines:
        raise SetupError(
            f"no Debian mirror for {suite} is known: {apt} names none",
            hint=f"set {MIRROR_VARIABLE} to the address of a Debian mirror",
        )
    return lines


def _of(suite: str, known: list[Source]) -> Iterator[Source]:
    """List the sources of a suite; else those of the computer's own suite, renamed."""
    pockets = (suite, f"{suite}-updates", f"{suite}-security")
    found = [source for source in known if source.suite in pockets]
    if found:
        yield from found
        return
    own = _own_suite()
    for source in known:
        if own and source.suite in (own, f"{own}-updates", f"{own}-security"):
            yield replace(source, suite=source.suite.replace(own, suite, 1))


def _own_suite() -> str:
    """Tell the code name of this Debian; empty elsewhere, where the mirror has no Debian."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    values = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return values.get("VERSION_CODENAME", "") if values.get("ID") == "debian" else ""


def read_sources(apt: Path) -> Iterator[Source]:
    """All binary package sources apt would use."""
    parts = apt / "sources.list.d"
    for path in (apt / "sources.list", *sorted(parts.glob("*.list"))):
        yield from _one_line_style(_text(path))
    for path in sorted(parts.glob("*.sources")):
        yield from _deb822_style(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _one_line_style(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        found = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if found:
            suite, *components = found["rest"].split()
            keyring = re.search(r"signed-by=(/\S+)", found["options"] or "", re.IGNORECASE)
            yield Source(
                uri=found["uri"],
                suite=suite,
                components=tuple(components),
                keyring=keyring[1] if keyring else "",
            )


def _deb822_style(text: str) -> Iterator[Source]:
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        fields = {key.lower(): value for key, value in re.findall(r"(?m)^(\S+):\s*(.*)$", unfolded)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        keyring = fields.get("signed-by", "")
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(
                    uri=uri,
                    suite=suite,
                    components=tuple(fields.get("components", "").split()),
                    keyring=keyring if keyring.startswith("/") and " " not in keyring else "",
                )
