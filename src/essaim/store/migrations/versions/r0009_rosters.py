"""Rosters, their students and teachers, and when classes begin."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0009"
down_revision = "0008"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
WORD = sa.String(16)
BODY = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
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
    """Add tables; an older Essaim goes on working with what it knows."""
    op.create_table(
        "roster",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("body", BODY, nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_table(
        "student",
        sa.Column("roster", NAME, primary_key=True),
        sa.Column("login", NAME, primary_key=True),
        sa.Column("person", BODY, nullable=False),
        sa.Column("machine", NAME, nullable=False),
        sa.Column("address", NAME, nullable=False),
        sa.Column("standing", WORD, nullable=False),
        sa.Column("since_at", sa.BigInteger(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("error", BODY, nullable=False),
        sa.Column("run", NAME, nullable=False),
        sa.Column("account", NAME, nullable=False),
        sa.Column("code", NAME, nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
    for name, column in (
        ("student_account", "account"),
        ("student_code", "code"),
        ("student_machine", "machine"),
        ("student_standing", "standing"),
    ):
        op.create_index(name, "student", [column], if_not_exists=True)
    op.create_table(
        "teacher",
        sa.Column("roster", NAME, primary_key=True),
        sa.Column("account", NAME, primary_key=True),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_index("teacher_account", "teacher", ["account"], if_not_exists=True)
    op.create_table(
        "timetable",
        sa.Column("roster", NAME, primary_key=True),
        sa.Column("verb", WORD, primary_key=True),
        sa.Column("times", NAME, nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        if_not_exists=True,
        **OPTIONS,
    )
