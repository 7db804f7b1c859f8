"""Passwords, tokens and their digests.  Costs and lifetimes are decided here and nowhere else."""

from __future__ import annotations

import functools
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import argon2
import jwt

from essaim.model.errors import UnauthorisedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jwt.types import Options

    from essaim.remote.signing_keys import SigningKey

#: argon2id with 19 MiB and three passes: some 40 ms of one core, and little enough memory that
#: fifty who log in at once do not exhaust a small server.
HASHER = argon2.PasswordHasher(time_cost=3, memory_cost=19 * 1024, parallelism=1)

ACCESS_SECONDS = 15 * 60
NEEDED: Options = {"require": ["exp", "sub", "sid"]}
SESSION_SECONDS = 14 * 24 * 3600  #: without use


def hash_password(password: str) -> str:
    """Hash a password for keeping."""
    return HASHER.hash(password)


def right_password(kept: str | None, password: str) -> bool:
    """Whether a password is the one kept.  When there is none it takes the same time to say no."""
    try:
        HASHER.verify(kept or _nobodys(), password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False
    return kept is not None


def outdated(kept: str) -> bool:
    """Whether a hash was made with other costs than those of today."""
    return HASHER.check_needs_rehash(kept)


@functools.cache
def _nobodys() -> str:
    return HASHER.hash(secrets.token_hex(16))


def new_token(kind: str) -> str:
    """Make 32 random bytes as text, after a word that says what they are for."""
    return f"{kind}_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return what is kept of a token.  It is random, so a plain hash cannot be turned back."""
    return hashlib.sha256(token.encode()).hexdigest()


def sign_access(key: SigningKey, *, user: str, role: str, session: str) -> str:
    """Make an access token that ends by itself and names the key it is signed with."""
    claims = {
        "sub": user,
        "role": role,
        "sid": session,
        "exp": int(time.time()) + ACCESS_SECONDS,
    }
    return jwt.encode(claims, key.secret, algorithm="HS256", headers={"kid": key.kid})


def read_access(keys: Iterable[SigningKey], token: str) -> dict[str, Any]:
    """Return the claims of an access token that is ours and not over; else UnauthorisedError.

    Which of the keys has signed it is tried out, the newest first: a token of an earlier release
    names none.
    """
    refused: jwt.InvalidTokenError = jwt.InvalidSignatureError("there is no key")
    try:
        for key in keys:
            try:
                return jwt.decode(token, key.secret, algorithms=["HS256"], options=NEEDED)
            except jwt.InvalidSignatureError as error:
                refused = error
        raise refused
    except jwt.ExpiredSignatureError as error:
        raise UnauthorisedError(
            "the access token is over", hint="use the refresh token, or log in again"
        ) from error
    except (jwt.InvalidTokenError, ValueError) as error:
        raise UnauthorisedError("this is not an access token of ours", hint="log in") from error
