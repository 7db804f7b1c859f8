"""Gateways, tries that all count together, and the gateway a visit came through."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

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
    """Add tables and a column; an older Essaim goes on working with what it knows."""
    _table(
        "gateway",
        _needed("address"),
        _needed("port", sa.Integer()),
        _needed("public_host"),
        _needed("public_port", sa.Integer()),
        _needed("seen_at", TIME),
    )
    _table("attempt", _needed("even_at", TIME))
    op.create_index("attempt_even", "attempt", ["even_at"], if_not_exists=True)
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("visit")}
    # MariaDB commits each statement: a migration cut short must be able to start over.
    if "gateway" not in there:
        op.add_column("visit", sa.Column("gateway", NAME, nullable=False, server_default=""))
    op.create_index("visit_open", "visit", ["closed_at", "gateway"], if_not_exists=True)


def _table(name: str, *columns: sa.Column[Any]) -> None:
    first = sa.Column("id", NAME, primary_key=True)
    op.create_table(name, first, *columns, if_not_exists=True, **OPTIONS)


def _needed(name: str, kind: Any = NAME) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
