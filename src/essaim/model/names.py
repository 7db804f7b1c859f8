"""Names that people type and that appear everywhere, `STACK/MACHINE`, and names of hosts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

#: A name must also be a host name and a directory, so it stays within RFC 1123 and short.
NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_LONGEST_HOST = 253


def is_host(text: str) -> bool:
    """Whether it is an IP address, without a zone, or a host name as RFC 1123 has them."""
    try:
        return not getattr(ipaddress.ip_address(text), "scope_id", None)
    except ValueError:
        labels = text.split(".")
    fits = len(text) <= _LONGEST_HOST and all(_LABEL.fullmatch(label) for label in labels)
    return fits and not labels[-1].isdigit()  # as in 192.0.2.300


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
