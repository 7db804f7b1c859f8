"""How a process proves to a gateway, and the gateway to it, that both are of one control plane.

The gateway speaks first, with a number it never uses again; so what was overheard once opens
nothing a second time, and nothing at another gateway.  What goes by afterwards is SSH, which hides
and checks itself end to end.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
from dataclasses import dataclass

from essaim.model.errors import RejectedError, TransientError

GREETING = b"essaim-inner-1"
#: The longest line, of either side.
LONGEST = 512
#: Seconds to prove who one is.
PROVE_WITHIN = 5.0
_NONCE = re.compile(rb"[0-9a-f]{64}")
#: How many words a request has.
WORDS = 4
#: What a way is for: a visit is not cut short while a gateway ends, work begins again elsewhere.
VISIT, WORK = "visit", "work"
#: Asked for instead of a node by whoever only wants to know whether the gateway answers.
NOBODY = "-"


def new_nonce() -> bytes:
    """Give a number that was never used."""
    return secrets.token_hex(32).encode()


def proof(key: bytes, *said: str | bytes) -> bytes:
    """Give what only a holder of the key can say about this conversation."""
    words = [word.encode() if isinstance(word, str) else word for word in said]
    # With its length before each word, no two conversations are alike.
    text = b"".join(b"%d:%s" % (len(word), word) for word in words)
    return hmac.new(key, GREETING + text, hashlib.sha256).hexdigest().encode()


def greeting(nonce: bytes) -> bytes:
    """The gateway's first line."""
    return GREETING + b" " + nonce + b"\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a process that proved itself wants."""

    node: str
    why: str  #: visit or work
    theirs: bytes  #: the number they chose


def request(
    key: bytes, gateway: str, wish: tuple[str, str], *, theirs: bytes, ours: bytes
) -> bytes:
    """The line with which a process asks for the way to a node."""
    node, why = wish
    shown = proof(key, "ask", gateway, node, why, theirs, ours)
    return b" ".join([node.encode(), why.encode(), ours, shown]) + b"\n"


def asked(line: bytes, key: bytes, gateway: str, ours: bytes) -> Asked | None:
    """Give what is asked for; None when it is nobody of ours who asks."""
    words = line.split()
    if len(words) != WORDS or not _NONCE.fullmatch(words[2]) or not line.isascii():
        return None
    node, why, theirs, shown = words
    right = proof(key, "ask", gateway, node, why, ours, theirs)
    if not hmac.compare_digest(shown, right):
        return None
    return Asked(node.decode(), why.decode(), theirs)


def consent(key: bytes, gateway: str, node: str, theirs: bytes, ours: bytes) -> bytes:
    """The gateway's line after which the way is open."""
    return b"ok " + proof(key, "open", gateway, node, ours, theirs) + b"\n"


def refusal(why: str) -> bytes:
    """The gateway's last line when there is no way."""
    line = " ".join(why.split()).encode("ascii", "replace")
    return b"no " + line[: LONGEST - 8] + b"\n"


def dial_inner(
    at: tuple[str, int], *, gateway: str, node: str, key: bytes, within: float, why: str = WORK
) -> socket.socket:
    """Give a connection to a node through the gateway where its tunnel ends.

    TransientError when it cannot be had; RejectedError when the gateway is not one of ours.
    """
    where = f"gateway {gateway} at {at[0]} port {at[1]}"
    try:
        made = socket.create_connection(at, within)
    except OSError as error:
        raise TransientError(f"{node}: {where}: {error.strerror or error}") from error
    try:
        made.settimeout(within)
        _prove(made, gateway, (node, why), key, where)
        made.settimeout(None)
    except OSError as error:
        made.close()
        raise TransientError(f"{node}: {where}: {error.strerror or error}") from error
    except BaseException:
        made.close()
        raise
    return made


def _prove(
    made: socket.socket, gateway: str, wish: tuple[str, str], key: bytes, where: str
) -> None:
    word, _, theirs = _line(made).partition(b" ")
    if word != GREETING or not _NONCE.fullmatch(theirs):
        raise _stranger(where)
    ours = new_nonce()
    made.sendall(request(key, gateway, wish, theirs=theirs, ours=ours))
    answer = _line(made)
    if answer.startswith(b"no "):
        raise TransientError(f"{wish[0]}: {where}: {answer[3:].decode('ascii', 'replace')}")
    if not hmac.compare_digest(answer + b"\n", consent(key, gateway, wish[0], ours, theirs)):
        raise _stranger(where)


def _line(made: socket.socket) -> bytes:
    """Read one line and not a byte more: what follows it is for somebody else."""
    line = b""
    while not line.endswith(b"\n"):
        byte = made.recv(1)
        if not byte or len(line) >= LONGEST:
            raise ConnectionResetError("it hung up")
        line += byte
    return line[:-1]


def _stranger(where: str) -> RejectedError:
    return RejectedError(
        f"{where}: something else answers there",
        hint="all processes of a control plane use one database; see which listens there",
    )
