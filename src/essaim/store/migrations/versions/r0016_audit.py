"""The audit trail."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0016"
down_revision = "0015"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
BODY = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
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
    """Add a table; an older Essaim goes on working without it."""
    op.create_table(
        "audit",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        *(sa.Column(name, NAME, nullable=False) for name in ("who", "name", "address", "action")),
        sa.Column("object", NAME, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("request", NAME, nullable=False),
        sa.Column("details", BODY, nullable=False),
        sa.Column("place", sa.BigInteger()),
        sa.Column("previous", NAME),
        sa.Column("hash", NAME),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index("audit_place", "audit", ["place"], unique=True, if_not_exists=True)
    op.create_index("audit_at", "audit", ["at"], if_not_exists=True)
