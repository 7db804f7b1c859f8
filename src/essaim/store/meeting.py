"""The tables by which gateways are found, and tries are counted together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table

from essaim.store.columns import MARIADB, NAME, metadata

# A gateway that lives.  Its beat is one row, however many tunnels end there.
gateway = Table(
    "gateway",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("address", NAME, nullable=False),  # of its inner door, for other processes
    Column("port", Integer, nullable=False),
    Column("public_host", NAME, nullable=False),  # for agents; empty when it has none of its own
    Column("public_port", Integer, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    **MARIADB,
)

# When somebody will have made up for all their tries, by a digest of what and who.
attempt = Table(
    "attempt",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("even_at", BigInteger, nullable=False),
    Index("attempt_even", "even_at"),
    **MARIADB,
)
