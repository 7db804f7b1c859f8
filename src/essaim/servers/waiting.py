"""What a server that does not answer is called, the same for all kinds of servers."""

from __future__ import annotations

from essaim.model.errors import TransientError


def away(what: str, why: object, *, hint: str = "") -> TransientError:
    """Say that a server did not answer; a later try may find it."""
    return TransientError(
        f"{what} does not answer: {why}",
        hint=hint or "see whether it runs and whether a firewall is in between",
    )
