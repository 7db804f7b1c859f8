"""SSH public keys as text: one line of `authorized_keys`, without options."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from essaim.model.errors import RejectedError

#: What a line looks like; `read` also looks inside.
PUBLIC_KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)"
    r"|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com)"
    r" ([A-Za-z0-9+/]{32,4096}={0,3})( [^\x00-\x1f\x7f]{0,200})?"
)
_LENGTH = 4
#: Bits of the smallest RSA key that is accepted; whoever has enough computers opens a shorter one.
RSA_BITS = 2048


def read(line: str) -> str:
    """Return the key without its comment; RejectedError when it is not one public key."""
    found = PUBLIC_KEY.fullmatch(line.strip())
    if found is None or not _holds(found[2], found[1]):
        raise RejectedError("not one SSH public key", hint="one line of ~/.ssh/*.pub")
    if is_weak(line):
        what = f"an RSA key must have {RSA_BITS} bits or more"
        raise RejectedError(what, hint="ssh-keygen -t ed25519 makes a good one")
    return f"{found[1]} {found[2]}"


def is_weak(line: str) -> bool:
    """Whether it is an RSA key that is too short, or none."""
    kind, text = line.split()[:2]
    if kind != "ssh-rsa":
        return False
    try:
        name, _exponent, modulus = _fields(base64.b64decode(text, validate=True))
    except ValueError:
        return True
    return name != kind.encode() or int.from_bytes(modulus).bit_length() < RSA_BITS


def _fields(data: bytes) -> list[bytes]:
    """Split an encoded key; each part stands behind its length."""
    found = []
    while data:
        end = _LENGTH + int.from_bytes(data[:_LENGTH])
        if end > len(data):
            raise ValueError(data)
        found.append(data[_LENGTH:end])
        data = data[end:]
    return found


def fingerprint(line: str) -> str:
    """Return the fingerprint as `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _holds(text: str, kind: str) -> bool:
    """Whether the encoded part says itself that it is a key of this kind."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return False
    end = _LENGTH + int.from_bytes(data[:_LENGTH])
    return data[_LENGTH:end] == kind.encode()
