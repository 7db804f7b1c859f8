"""What scales services: which process, what it saw, what it decided."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0005"
down_revision = "0004"

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
    """Add tables; an older Essaim goes on working with what it knows."""
    _table(
        "scaler",
        sa.Column("service", NAME, primary_key=True),
        _needed("owner", NAME),
        _needed("epoch", sa.Integer()),
        _needed("since_at", TIME),
        _needed("until_at", TIME),
    )
    _table(
        "scaling",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        _needed("service", NAME),
        _needed("at", TIME),
        sa.Column("seen", sa.Integer()),
        _needed("wanted", sa.Integer()),
        _needed("decided", sa.Integer()),
        sa.Column("low", sa.Double()),
        sa.Column("high", sa.Double()),
        _needed("pressing", sa.Boolean()),
        _needed("reason", BODY),
        _needed("trouble", BODY),
        _needed("counters", BODY),
    )
    _index("scaling_service", "scaling", ["service", "at"])
    _index("scaling_at", "scaling", ["at"])


def _table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(name, *columns, if_not_exists=True, **OPTIONS)


def _index(name: str, table: str, columns: list[str]) -> None:
    op.create_index(name, table, columns, if_not_exists=True)


def _needed(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
