"""Runs that belong to a site, and the processes that find each other through the database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
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
    """Add columns and tables; an older Essaim goes on working with what it knows."""
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("run")}
    for column in (
        sa.Column("site", NAME, nullable=False, server_default=""),
        sa.Column("sent_at", TIME, nullable=False, server_default="0"),
    ):
        # MariaDB commits each statement: a migration cut short must be able to start over.
        if column.name not in there:
            op.add_column("run", column)
    _table(
        "worker",
        sa.Column("id", NAME, primary_key=True),
        sa.Column("site", NAME, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("host", NAME, nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("since_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
    )
    _index("worker_seen", "worker", ["seen_at"])
    _table(
        "tunnel",
        sa.Column("node", NAME, primary_key=True),
        sa.Column("gateway", NAME, nullable=False),
        sa.Column("address", NAME, nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
    )
    _index("tunnel_gateway", "tunnel", ["gateway"])


def _table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(name, *columns, if_not_exists=True, **OPTIONS)


def _index(name: str, table: str, columns: list[str]) -> None:
    op.create_index(name, table, columns, if_not_exists=True)
