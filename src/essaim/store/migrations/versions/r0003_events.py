"""Events, visits, and leases that may be held."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0003"
down_revision = "0002"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
BODY = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.BigInteger()
OPTIONS: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
    )
}


def upgrade() -> None:
    """Add tables and columns; an older Essaim goes on working with what it knows."""
    _event()
    _visit()
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("lease")}
    for column in (
        sa.Column("home", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("hold", TIME, nullable=False, server_default="0"),
        sa.Column("held_at", TIME),
    ):
        # MariaDB commits each statement: a migration cut short must be able to start over.
        if column.name not in there:
            op.add_column("lease", column)


def _event() -> None:
    _table(
        "event",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("place", TIME),
        _needed("at", TIME),
        _needed("kind"),
        _needed("body", BODY),
        _needed("lease"),
        _needed("node"),
        _needed("person"),
        _needed("urgent", sa.Boolean()),
        sa.Column("once", NAME),
    )
    _index("event_place", "event", ["place", "id"])
    _index("event_person", "event", ["person", "place"])
    _index("event_once", "event", ["once"], unique=True)


def _visit() -> None:
    _table(
        "visit",
        sa.Column("id", NAME, primary_key=True),
        _needed("lease"),
        _needed("person"),
        _needed("node"),
        _needed("client"),
        _needed("public_key"),
        _needed("opened_at", TIME),
        sa.Column("closed_at", TIME),
        _needed("bytes_in", TIME),
        _needed("bytes_out", TIME),
        _needed("refused", BODY),
    )
    _index("visit_lease", "visit", ["lease", "opened_at"])
    _index("visit_person", "visit", ["person", "opened_at"])
    _index("visit_opened", "visit", ["opened_at"])


def _table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(name, *columns, if_not_exists=True, **OPTIONS)


def _index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    op.create_index(name, table, columns, if_not_exists=True, unique=unique)


def _needed(name: str, kind: Any = NAME) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
