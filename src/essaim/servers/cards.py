"""The address of a network card, as text and as the bytes servers keep."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from essaim.model.school import Host

_CARD = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def card(host: Host) -> bytes:
    """The six bytes of its card.  RejectedError when it has none."""
    text = host.mac.lower()
    if not _CARD.fullmatch(text):
        raise RejectedError(
            f"{host.name} has no card that a DHCP server could know: {host.mac or 'none'}",
            hint="its driver says it once the machine was made: such as bc:24:11:00:00:01",
        )
    return bytes.fromhex(text.replace(":", ""))


def card_text(body: bytes) -> str:
    """A card in lower case with colons."""
    return body.hex(":")
