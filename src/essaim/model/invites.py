"""Who may make an account: by invite code, after approval, anybody, or nobody."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class SignupMode(enum.StrEnum):
    """What sign-up asks for."""

    INVITE = "invite"  #: a code that an administrator made
    APPROVE = "approve"  #: an administrator approves the account before its first login
    OPEN = "open"  #: nothing: for demonstrations, and networks without strangers
    CLOSED = "closed"  #: administrators make no accounts for now


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite:
    """A code with which so many people may sign up, and the rights that it carries.

    Times are milliseconds since 1970 in the database's clock.
    """

    id: str
    uses: int  #: people who may still sign up with it
    project: str = ""  #: the new account belongs to it
    roster: str = ""  #: the new account teaches it
    by: str = ""  #: name of the administrator who made it
    created_at: int = 0
    expires_at: int = 0
