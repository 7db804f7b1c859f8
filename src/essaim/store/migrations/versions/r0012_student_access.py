"""The SSH keys of students, and what was put on their machines for them to log in with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0012"
down_revision = "0011"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
BODY = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Add columns that may be empty; an older Essaim goes on working with what it knows."""
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("student")}
    for name in ("roster_key", "own_key", "access"):
        if name not in columns:
            op.add_column("student", sa.Column(name, BODY, nullable=True))
