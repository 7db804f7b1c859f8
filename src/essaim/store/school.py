"""The tables of rosters, their students and teachers, and when classes begin."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from essaim.store.columns import BODY, MARIADB, NAME, WORD, metadata

roster = Table(
    "roster",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("body", BODY, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    **MARIADB,
)

student = Table(
    "student",
    metadata,
    Column("roster", NAME, primary_key=True),
    Column("login", NAME, primary_key=True),
    Column("person", BODY, nullable=False),
    Column("machine", NAME, nullable=False),
    Column("address", NAME, nullable=False),
    Column("standing", WORD, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("made_at", BigInteger, nullable=False),  # when there was first something to lose
    Column("halted_at", BigInteger, nullable=False, server_default="0"),  # 0: wanted on
    Column("error", BODY, nullable=False),
    Column("run", NAME, nullable=False),
    # The account that is theirs, and the digest of the code with which they claim it.
    Column("account", NAME, nullable=False),
    Column("code", NAME, nullable=False),
    # SSH public keys: the roster's, and the one the student has sent instead.
    Column("roster_key", BODY),
    Column("own_key", BODY),
    # JSON: what was last put on the machine for the student to log in with, or why it was not.
    Column("access", BODY),
    Index("student_account", "account"),
    Index("student_code", "code"),
    Index("student_machine", "machine"),
    Index("student_standing", "standing"),
    **MARIADB,
)

teacher = Table(
    "teacher",
    metadata,
    Column("roster", NAME, primary_key=True),
    Column("account", NAME, primary_key=True),
    Index("teacher_account", "account"),
    **MARIADB,
)

timetable = Table(
    "timetable",
    metadata,
    Column("roster", NAME, primary_key=True),
    Column("verb", WORD, primary_key=True),
    Column("times", NAME, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    **MARIADB,
)
