"""Signatures that a machine makes with its host key, as `ssh-keygen -Y sign` writes them.

The format is PROTOCOL.sshsig of OpenSSH.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: What host keys sign for us, and nothing else: a signature for another purpose is none here.
NAMESPACE = "essaim-register"
_MAGIC = b"SSHSIG"
_VERSION = 1
_LENGTH = 4


def is_signed(text: str, signature: str, host_key: str) -> bool:
    """Whether the owner of a host key (`ssh-ed25519 AAAA…`) has signed the text for us.

    `signature` is base64, without the lines before and after it.
    """
    with contextlib.suppress(ValueError, IndexError, UnicodeError):
        key = base64.b64decode(host_key.split()[1], validate=True)
        blob = base64.b64decode(signature, validate=True)
        if blob[: len(_MAGIC)] != _MAGIC:
            return False
        version, rest = blob[len(_MAGIC) :][:_LENGTH], blob[len(_MAGIC) + _LENGTH :]
        shown, namespace, reserved, algorithm, own = _strings(rest)
        if int.from_bytes(version) != _VERSION or shown != key or namespace != NAMESPACE.encode():
            return False
        if algorithm not in {b"sha256", b"sha512"}:
            return False
        digest = hashlib.new(algorithm.decode(), text.encode()).digest()
        signed = _MAGIC + b"".join(map(_string, (namespace, reserved, algorithm, digest)))
        return _verifies(host_key, own, signed)
    return False


def _verifies(host_key: str, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import (  # noqa: PLC0415 - heavy
        InvalidSignature,
        UnsupportedAlgorithm,
    )
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - heavy

    kind, body = _strings(signature)
    with contextlib.suppress(InvalidSignature, UnsupportedAlgorithm):
        public = serialization.load_ssh_public_key(" ".join(host_key.split()[:2]).encode())
        check = _checks(public).get(kind.decode())
        if check is not None:
            check(body, signed)
            return True
    return False


def _checks(public: object) -> dict[str, Callable[[bytes, bytes], None]]:
    """How signatures by this key are checked, by the name of the kind of signature."""
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - heavy
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils  # noqa: PLC0415 - heavy

    if isinstance(public, ed25519.Ed25519PublicKey):
        return {"ssh-ed25519": public.verify}
    if isinstance(public, rsa.RSAPublicKey):
        scheme = padding.PKCS1v15()
        return {  # not `ssh-rsa`, which is SHA-1
            "rsa-sha2-256": lambda own, signed: public.verify(own, signed, scheme, hashes.SHA256()),
            "rsa-sha2-512": lambda own, signed: public.verify(own, signed, scheme, hashes.SHA512()),
        }
    if isinstance(public, ec.EllipticCurvePublicKey):
        size = public.key_size
        used = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[size]

        def check(own: bytes, signed: bytes) -> None:
            r, s = (int.from_bytes(part, signed=True) for part in _strings(own))
            public.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(used))

        return {f"ecdsa-sha2-nistp{size}": check}
    return {}


def _strings(data: bytes) -> list[bytes]:
    """Split what stands behind its length; ValueError when something is cut off."""
    found = []
    while data:
        end = _LENGTH + int.from_bytes(data[:_LENGTH])
        if len(data) < _LENGTH or end > len(data):
            raise ValueError("cut off")
        found.append(data[_LENGTH:end])
        data = data[end:]
    return found


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH) + data
