"""Invite codes, and accounts that wait for approval."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

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
    """Add a table and a column with a default; an older Essaim goes on with what it knows.

    An account that waits is disabled as well: so an older process does not let it in either.
    """
    op.create_table(
        "invite",
        sa.Column("id", NAME, primary_key=True),
        sa.Column("digest", NAME, nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("project", NAME, nullable=False),
        sa.Column("roster", NAME, nullable=False),
        sa.Column("who", NAME, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index("invite_digest", "invite", ["digest"], unique=True, if_not_exists=True)
    op.create_index("invite_expires", "invite", ["expires_at"], if_not_exists=True)
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("person")}
    if "pending" not in columns:
        op.add_column(
            "person",
            sa.Column("pending", sa.Boolean(), nullable=False, server_default=sa.false()),
        )
