"""Numbers of a site that one machine at most may have."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

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
    """Add a table; an older Essaim goes on working with what it knows."""
    op.create_table(
        "reservation",
        sa.Column("site", NAME, primary_key=True),
        sa.Column("kind", NAME, primary_key=True),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("holder", NAME, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index(
        "reservation_holder",
        "reservation",
        ["site", "holder", "kind"],
        unique=True,
        if_not_exists=True,
    )
