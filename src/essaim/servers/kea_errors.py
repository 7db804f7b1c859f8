"""What a database's refusal means for somebody who only wanted a reservation."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import sqlalchemy as sa

from essaim.model.errors import EssaimError, MissingExtraError, RejectedError, TransientError
from essaim.servers.waiting import away

_STRANGER = re.compile(r"authentication failed|no password supplied|Access denied", re.IGNORECASE)
_ABSENT = re.compile(r"Unknown database|(database|role) .* does not exist", re.IGNORECASE)
_NO_TABLE = re.compile(r"doesn't exist|relation .* does not exist", re.IGNORECASE)
_DENIED = re.compile(r"command denied|permission denied", re.IGNORECASE)
#: Two who change the same rows: one is told to come again.
_CROSSED = re.compile(r"deadlock|Lock wait timeout|serialize access", re.IGNORECASE)

_REFUSALS = (
    (_DENIED, "refuses", "grant the account SELECT, INSERT and DELETE on the table hosts"),
    (_STRANGER, "does not let us in", "compare the account in dhcp.database and dhcp.secret"),
    (_ABSENT, "is not there", "compare the name in dhcp.database with Kea's hosts-database"),
    (
        _NO_TABLE,
        "is not Kea's",
        "let `kea-admin db-init` make its tables, or correct dhcp.database",
    ),
)


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Make our errors of the database's."""
    try:
        yield
    except sa.exc.TimeoutError as exc:
        raise away(where, "no connection was free") from exc
    except sa.exc.DBAPIError as exc:
        raise _meaning(where, exc) from exc
    except ModuleNotFoundError as exc:
        raise _missing(exc) from exc


def _meaning(where: str, exc: sa.exc.DBAPIError) -> EssaimError:
    said = _sentence(exc)
    for pattern, what, hint in _REFUSALS:
        if pattern.search(said):
            return RejectedError(f"{where} {what}: {said}", hint=hint)
    if _CROSSED.search(said):
        return TransientError(f"{where} was busy with the same reservation: {said}")
    if isinstance(exc, sa.exc.OperationalError | sa.exc.InterfaceError):
        return away(where, said)
    return RejectedError(f"{where} refuses: {said}")


def _sentence(exc: sa.exc.DBAPIError) -> str:
    """The database's own words, without ours."""
    last = exc.orig.args[-1] if exc.orig and exc.orig.args else exc.orig
    return " ".join(str(last).split())


def _missing(exc: ModuleNotFoundError) -> EssaimError:
    extra = "mariadb" if exc.name == "pymysql" else "postgresql"
    return MissingExtraError(f"the Python package {exc.name} is not installed", extra)
