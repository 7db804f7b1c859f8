"""Keep what commands print on machines, without the secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.remote.ssh import Result

MASK = "••••"
#: Characters kept of one command's output: its end, where the reason stands.
LONGEST = 64 * 1024
#: A line of a secret shorter than this is too common to be masked wherever it appears.
_TELLING = 8


class Record(Protocol):
    """Where finished commands go: a CommandLog but for its run and step, which the caller knows."""

    def __call__(
        self,
        *,
        machine: str,
        command: str,
        exit_code: int,
        output: str,
        started_at: float,
        seconds: float,
    ) -> None:
        """Keep one command."""


def mask(text: str, secrets: Sequence[str]) -> str:
    """Replace every secret in the text, and every telling line of a secret of many lines."""
    parts = {secret.strip() for secret in secrets}
    for secret in secrets:
        parts.update(line.strip() for line in secret.splitlines() if len(line.strip()) >= _TELLING)
    # The longest first: a secret may contain another.
    for part in sorted(parts - {""}, key=len, reverse=True):
        text = text.replace(part, MASK)
    return text


def last_line(text: str) -> str:
    """Give the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class Log:
    """Records the commands of one machine, masked and cut to their end."""

    record: Record
    machine: str
    secrets: Sequence[str]

    def keep(self, command: str, result: Result, started_at: float) -> str:
        """Record one command and give its output as anybody may see it."""
        shown = mask(result.output, self.secrets)
        if len(shown) > LONGEST:
            lost = len(shown) - LONGEST
            shown = f"[{lost} characters before this were not kept]\n{shown[-LONGEST:]}"
        self.record(
            machine=self.machine,
            command=mask(command, self.secrets),
            exit_code=result.exit_code,
            output=shown,
            started_at=started_at,
            seconds=result.seconds,
        )
        return shown
