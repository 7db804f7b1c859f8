"""How a database is: what it is, which schema it has, and what its clock says."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from essaim.model.errors import TransientError
from essaim.store import migrations
from essaim.store.database import Database, db_now
from essaim.store.migrate import oldest, version

#: The oldest servers that are known to do all that is asked of them.
OLDEST = {"mariadb": (10, 6), "postgresql": (13, 0), "sqlite": (3, 31)}
ASK = {
    "mariadb": "SELECT VERSION()",
    "postgresql": "SHOW server_version",
    "sqlite": "SELECT sqlite_version()",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What was found."""

    where: str  #: without its password
    kind: str
    version: str
    old: bool  #: older than what is known to work
    schema: str  #: empty for an empty database
    wanted: str  #: the newest schema
    welcome: bool  #: whether this version may work with it, if it is a newer one
    skew: float  #: seconds our clock is before the database's; negative when behind
    slack: float  #: seconds by which that may be wrong


def condition(database: Database) -> Condition:
    """Look at a database without changing it; TransientError when it does not answer."""
    try:
        with database.engine.connect() as connection:
            said = str(connection.execute(sa.text(ASK[database.kind])).scalar())
            before = time.time()
            there = connection.execute(sa.select(db_now())).scalar_one() / 1000
            after = time.time()
    except DBAPIError as error:
        raise TransientError(
            f"database {database.where} does not answer: {error.orig}",
            hint="see that it runs, and that ESSAIM_DATABASE names it, its user and its password",
        ) from error
    numbers = re.match(r"(\d+)\.(\d+)", said)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    return Condition(
        where=database.where,
        kind=database.kind,
        version=said,
        old=found < OLDEST[database.kind],
        schema=version(database) or "",
        wanted=migrations.HEAD,
        welcome=(oldest(database) or "9999") <= migrations.HEAD,
        skew=(before + after) / 2 - there,
        slack=(after - before) / 2 + 0.001,
    )
