"""Challenges that joining machines sign, and machines that wait for approval."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

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
    """Add a table, and columns that may be empty; an older Essaim knows neither."""
    op.create_table(
        "challenge",
        sa.Column("digest", NAME, primary_key=True),
        sa.Column("enrolment", NAME, nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index("challenge_expires", "challenge", ["expires_at"], if_not_exists=True)
    found = sa.inspect(op.get_bind())
    for table, name in (("enrolment", "approve"), ("node", "waiting")):
        if name not in {column["name"] for column in found.get_columns(table)}:
            op.add_column(table, sa.Column(name, sa.Boolean(), nullable=True))
