"""When somebody stopped a student's machine: until it is started, it is wanted off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add a column with a default; an older Essaim goes on working with what it knows."""
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("student")}
    if "halted_at" not in columns:
        op.add_column(
            "student", sa.Column("halted_at", sa.BigInteger(), nullable=False, server_default="0")
        )
