"""Names that people type and that appear everywhere: `STACK/MACHINE`."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A name must also be a host name and a directory, so it stays within RFC 1123 and short.
NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True, order=True)
class MachineName:
    """The name of one machine, unique on a control plane."""

    stack: str
    machine: str

    def __str__(self) -> str:
        return f"{self.stack}/{self.machine}"

    @classmethod
    def parse(cls, text: str) -> MachineName:
        """Read `STACK/MACHINE`; ValueError when it is not one."""
        stack, slash, machine = text.partition("/")
        if not (slash and NAME.fullmatch(stack) and NAME.fullmatch(machine)):
            raise ValueError(text)
        return cls(stack, machine)
