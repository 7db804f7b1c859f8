"""The commands that pages show, and what pages say about them in comments that readers do not see.

A fenced block of `console` (or `sh`) may have such comments right before it:

    <!-- needs: a KVM server -->                    not run here; REASONS lists what may be needed
    <!-- needs: values of your own, for: runs show -->   only the lines that contain these words
    <!-- takes: minutes -->                         run by `make test-all` alone
    <!-- serves: until Ctrl-C, for: lab proxmox --> goes on while the rest of the page is run
    <!-- before: essaim up examples/bare -->        run before the block

Whatever is not run is checked all the same: see `static.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])

#: Why a command of a page cannot be run by a test.
REASONS = (
    "a KVM server",
    "a Proxmox VE cluster",
    "a control plane elsewhere",
    "a deployment",
    "a fresh checkout",
    "Nix",
    "much time",
    "the internet",
    "values of your own",
)
KINDS = ("needs", "takes", "serves", "before")
_COMMENT = re.compile(r"<!-- (\w+): (.*?)(?:, for: (.*?))? -->")


@dataclass(frozen=True)
class Remark:
    """One comment before a block."""

    kind: str
    text: str
    only: str = ""  #: the lines it is about contain this


@dataclass
class Line:
    """A command as a page shows it, and the output the page shows below it."""

    page: Path
    number: int
    command: str
    output: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def says(self, kind: str) -> str:
        return next((each.text for each in self.remarks if each.kind == kind), "")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.number}: {self.command}"


def read_page(page: Path) -> list[Line]:
    """Every command of a page, in order; those of `before` among them."""
    found: list[Line] = []
    remarks: list[Remark] = []
    language = None
    for number, text in enumerate(page.read_text().splitlines(), 1):
        if text.startswith("```"):
            if language is None:
                language = text.strip("`").strip()
                found += _before(page, number, remarks) if language == "console" else []
            else:
                language, remarks = None, []
        elif language == "console":
            _console(found, Line(page, number, text), remarks)
        elif language == "sh":
            _script(found, Line(page, number, text), remarks)
        elif language is None:
            heard = _COMMENT.fullmatch(text.strip())
            remarks = [*remarks, Remark(heard[1], heard[2], heard[3] or "")] if heard else []
    return found


def _before(page: Path, number: int, remarks: list[Remark]) -> list[Line]:
    taking = [each for each in remarks if each.kind == "takes"]
    return [
        Line(page, number, each.text, remarks=taking) for each in remarks if each.kind == "before"
    ]


def _console(found: list[Line], line: Line, remarks: list[Remark]) -> None:
    if line.command.startswith("$ "):
        line.command = line.command[2:]
        line.remarks = [each for each in remarks if each.only in line.command]
        found.append(line)
    else:
        found[-1].output.append(line.command)


def _script(found: list[Line], line: Line, remarks: list[Remark]) -> None:
    """`sh`: a script to be read; checked, never run."""
    if found and found[-1].command.endswith("\\"):
        found[-1].command = found[-1].command[:-1] + line.command
    elif line.command.strip() and not line.command.startswith("#"):
        line.remarks = [Remark("needs", "values of your own"), *remarks]
        found.append(line)


def matches(expected: str, line: str) -> bool:
    """Does a line look as a page shows it; `…` stands for anything, a comment for nothing."""
    expected = re.split(r"\s+# ", expected)[0].rstrip()
    return bool(re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line.rstrip()))
