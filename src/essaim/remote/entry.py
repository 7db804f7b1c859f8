"""From where gateways log in to the accounts of leases, and what they let be forwarded there."""

from __future__ import annotations

from dataclasses import dataclass

#: Where connections through a node's own tunnel come from, as its SSH server sees them.
TUNNELLED = ("127.0.0.1", "::1")
#: Ports of the machine itself, as the gateway allows.
_OWN_PORTS = ("localhost", "127.0.0.1", "[::1]", "ip6-localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How an account of a lease may be entered."""

    sources: tuple[str, ...] = ()  #: addresses or networks; none: from anywhere
    forwarding: bool = True  #: to ports of the machine itself

    def options(self) -> str:
        """Give what stands before a key in `authorized_keys`, as the helper writes it."""
        words = ["restrict", "pty"]
        if self.forwarding:
            words += ["port-forwarding", *(f'permitopen="{own}:*"' for own in _OWN_PORTS)]
        if self.sources:
            words.append(f'from="{",".join(self.sources)}"')
        return ",".join(words)


ANYWHERE = Entry()
