"""Which SSH public keys are accepted."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from essaim.model.errors import RejectedError
from essaim.model.public_keys import is_weak, read


def rsa_key(bits: int) -> str:
    key = rsa.generate_private_key(65537, bits).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_short_rsa_keys_are_refused():
    assert read(f"{rsa_key(2048)} me@here").startswith("ssh-rsa ")
    with pytest.raises(RejectedError, match="must have 2048 bits or more"):
        read(rsa_key(1024))


@pytest.mark.parametrize("body", [b"\xff" * 40, b"\0\0\0\7ssh-rsa" + b"\0" * 7])
def test_what_is_no_rsa_key_is_no_strong_one(body):
    assert is_weak(f"ssh-rsa {base64.b64encode(body).decode()}")
