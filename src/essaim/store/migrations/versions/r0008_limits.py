"""How many may do a thing at once, where that is found out, and who does it now."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

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
    """Add two tables; an older Essaim goes on working with what it knows."""
    op.create_table(
        "adaptive",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("allowed", sa.Integer(), nullable=False),
        sa.Column("borne", sa.Integer(), nullable=False),
        sa.Column("streak", sa.Integer(), nullable=False),
        sa.Column("patience", sa.Integer(), nullable=False),
        sa.Column("halved_at", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_table(
        "adaptive_use",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("holder", NAME, primary_key=True),
        sa.Column("task", NAME, nullable=False),
        sa.Column("since_at", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index(
        "adaptive_use_holder", "adaptive_use", ["holder"], unique=False, if_not_exists=True
    )
