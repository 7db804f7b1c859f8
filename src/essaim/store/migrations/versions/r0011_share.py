"""What share was refused of late, where it is found out how many may do a thing at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add a column with a default; an older Essaim goes on working with what it knows."""
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("adaptive")}
    if "share" not in columns:
        op.add_column(
            "adaptive", sa.Column("share", sa.Integer(), nullable=False, server_default="0")
        )
