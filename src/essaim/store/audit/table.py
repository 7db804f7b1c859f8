"""The table of the audit trail.  Rows are added, sealed once, and never changed again."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table

from essaim.store.columns import BODY, MARIADB, NAME, SERIAL, WORD, metadata

audit = Table(
    "audit",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("who", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("address", NAME, nullable=False),
    Column("action", NAME, nullable=False),
    Column("object", NAME, nullable=False),
    Column("outcome", WORD, nullable=False),
    Column("request", NAME, nullable=False),
    Column("details", BODY, nullable=False),
    # Its place in the chain and the hashes, once it is sealed.
    Column("place", BigInteger),
    Column("previous", NAME),
    Column("hash", NAME),
    Index("audit_place", "place", unique=True),
    Index("audit_at", "at"),
    **MARIADB,
)
