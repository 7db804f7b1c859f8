"""The tables, once, for SQLite, MariaDB and PostgreSQL.

Ids and names are at most 190 characters, the longest that MariaDB indexes twice in one key.  They
compare byte by byte everywhere, so that a range such as `a/` … `a0` means the same on all three.
Times ending in `_at` are milliseconds since 1970 in the database's clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.mysql import MEDIUMTEXT

NAME = String(190).with_variant(String(190, collation="C"), "postgresql")
WORD = String(16)
BODY = Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
SERIAL = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers only INTEGER keys itself

#: Said for both spellings of the URL.
MARIADB: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
    )
}

metadata = MetaData()

run = Table(
    "run",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("root", NAME, nullable=False),
    Column("parent", NAME),
    Column("workflow", NAME, nullable=False),
    Column("subject", NAME, nullable=False),
    Column("input", BODY, nullable=False),
    Column("who", NAME, nullable=False),
    Column("state", WORD, nullable=False),
    Column("undoing", Boolean, nullable=False),
    Column("note", BODY, nullable=False),
    Column("error", BODY, nullable=False),
    Column("owner", NAME, nullable=False),
    Column("epoch", Integer, nullable=False),
    # A child ended while this run was being carried: its next pause is cut short.
    Column("woken", Boolean, nullable=False),
    Column("holds", NAME),
    Column("waits_slot", NAME),
    Column("slot_since", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    # When it may be claimed: a READY run's waking time, a RUNNING run's end of lease, else NULL.
    # One column for both makes a claim one walk along one index.
    Column("due_at", BigInteger),
    Column("finished_at", BigInteger),
    Index("run_due", "due_at", "id"),
    Index("run_root", "root"),
    Index("run_parent", "parent"),
    Index("run_holds", "holds"),
    Index("run_slot", "waits_slot"),
    Index("run_created", "created_at"),
    **MARIADB,
)

step = Table(
    "step",
    metadata,
    Column("run", NAME, primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("state", WORD, nullable=False),
    Column("output", BODY),
    Column("attempts", Integer, nullable=False),
    Column("error", BODY, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Index("step_finished", "finished_at"),
    **MARIADB,
)

wait = Table(
    "wait",
    metadata,
    Column("run", NAME, primary_key=True),
    Column("on_run", NAME, primary_key=True),
    Index("wait_on", "on_run"),
    **MARIADB,
)

hold = Table(
    "hold",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("run", NAME, nullable=False),
    Column("owner", NAME, nullable=False),  # who watches over it; empty when nobody does
    Column("until_at", BigInteger, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Index("hold_run", "run"),
    **MARIADB,
)

# A row to lock while the users of a slot are counted.
slot = Table("slot", metadata, Column("name", NAME, primary_key=True), **MARIADB)

slot_use = Table(
    "slot_use",
    metadata,
    Column("run", NAME, primary_key=True),
    Column("slot", NAME, nullable=False),
    Index("slot_use_slot", "slot"),
    **MARIADB,
)

command_log = Table(
    "command_log",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("run", NAME, nullable=False),
    Column("step", NAME, nullable=False),
    Column("machine", NAME, nullable=False),
    Column("command", BODY, nullable=False),
    Column("exit_code", Integer, nullable=False),
    Column("output", BODY, nullable=False),
    Column("started", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Index("command_log_run", "run"),
    Index("command_log_machine", "machine"),
    **MARIADB,
)

stack = Table(
    "stack",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("body", BODY, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    **MARIADB,
)

machine = Table(
    "machine",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("stack", NAME, nullable=False),
    Column("body", BODY, nullable=False),
    Index("machine_stack", "stack"),
    **MARIADB,
)

applied = Table(
    "applied",
    metadata,
    Column("machine", NAME, primary_key=True),
    Column("role", NAME, primary_key=True),
    Column("digest", NAME, nullable=False),
    Column("needs", NAME, nullable=False),
    Column("boot", NAME, nullable=False),
    **MARIADB,
)

plan = Table(
    "plan",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("stack", NAME, nullable=False),
    Column("body", BODY, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("plan_created", "created_at"),
    **MARIADB,
)
