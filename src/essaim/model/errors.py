"""Every error Essaim raises on purpose.

Two questions sort them: whose fault is it, and is a retry of use?  Each carries a stable `code`
(what the API will return), the process exit code the CLI ends with, and a `hint`: what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from essaim.model.extras import install_hint


class EssaimError(Exception):
    """Something Essaim can explain to a person without a traceback."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class TransientError(EssaimError):
    """The world did not answer as it should just now: retry with backoff."""

    code = "transient"


class RejectedError(EssaimError):
    """The world said no, and would say no again: stop and unwind."""

    code = "rejected"


class HostKeyError(RejectedError):
    """A machine shows another host key than the one that is pinned for it."""


class TakenError(RejectedError):
    """The name belongs to somebody else."""

    code = "taken"


class ClashError(TakenError):
    """An address belongs to somebody else; the name is free, or ours: another address would do."""


class WeakError(RejectedError):
    """The password would be guessed."""

    code = "weak"


class QuotaError(RejectedError):
    """More than the caller, or their project, may have."""

    code = "quota"


class ImpossibleError(RejectedError):
    """There is nothing of the kind, free or not."""

    code = "impossible"


class ConflictError(RejectedError):
    """The same key was used before, for something else."""

    code = "conflict"


class ReplayError(RejectedError):
    """The message was seen before."""

    code = "replay"


class NotYetError(EssaimError):
    """What was asked for is under way: ask again `after` seconds.  A step does so by itself."""

    code = "not-yet"

    def __init__(self, what: str, *, after: float, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.after = after


class StuckError(EssaimError):
    """Neither going on nor going back is safe: a person decides."""

    code = "stuck"


class HeldError(EssaimError):
    """Somebody else is working on the same subject right now."""

    code = "held"

    def __init__(self, what: str, *, hint: str = "", run_id: str = "") -> None:
        super().__init__(what, hint=hint)
        self.run_id = run_id


class MovedError(EssaimError):
    """The world has changed since the plan was made, so the plan is no longer true."""

    code = "moved"


class UnknownError(EssaimError):
    """The caller named something that does not exist."""

    code = "unknown"
    exit_code = 2


class UnauthorisedError(EssaimError):
    """The caller did not prove who they are."""

    code = "unauthorised"


class ForbiddenError(EssaimError):
    """The caller is known, and may not do this."""

    code = "forbidden"


class ReauthenticateError(ForbiddenError):
    """The caller may do this, and has to prove once more who they are."""

    code = "reauthenticate"


class SetupError(EssaimError):
    """The computer Essaim runs on lacks something: a package, a right, disk space."""

    code = "setup"
    exit_code = 3


class SiteAwayError(SetupError):
    """A site does not answer, is not the right one, or refuses the account."""

    code = "site-away"


class MissingExtraError(SetupError):
    """An optional part of Essaim is needed and not installed."""

    def __init__(self, what: str, extra: str, *, otherwise: str = "") -> None:
        hint = install_hint(extra)
        super().__init__(what, hint=f"{hint}, {otherwise}" if otherwise else hint)
        self.extra = extra


class StoreError(EssaimError):
    """The database cannot be used just now: that says nothing about what was being done."""


class StoreAwayError(StoreError, TransientError):
    """The database does not answer, or has no connection left."""


class StoreBrokenError(StoreError, SetupError):
    """The database's disk is full, read-only or broken: a person has to see to it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line in a file, for a person to open."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with what the user wrote."""

    what: str
    place: Place | None = None
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.what}{hint}"


class InvalidError(EssaimError):
    """What the user wrote cannot be meant: lists every problem found, each with its place."""

    code = "invalid"
    exit_code = 2

    def __init__(self, problems: list[Problem], *, hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint=hint)
        self.problems = problems
