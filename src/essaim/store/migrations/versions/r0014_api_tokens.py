"""Tokens for programs; where a session was last used, and from where."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
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
    """Add a table, and columns that may be empty; an older Essaim goes on with what it knows."""
    op.create_table(
        "api_token",
        sa.Column("id", NAME, primary_key=True),
        sa.Column("digest", NAME, nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index("api_token_digest", "api_token", ["digest"], unique=True, if_not_exists=True)
    op.create_index("api_token_person", "api_token", ["person"], unique=False, if_not_exists=True)
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("session")}
    for column in (
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("address", NAME, nullable=True),
        sa.Column("agent", NAME, nullable=True),
    ):
        if column.name not in columns:
            op.add_column("session", column)
