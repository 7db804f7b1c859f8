"""The tables by which gateways are found, visits are kept and tries are counted together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table

from essaim.store.columns import BODY, MARIADB, NAME, metadata

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

# Who came through a gateway, to where, and how much went over it.
visit = Table(
    "visit",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("lease", NAME, nullable=False),
    Column("person", NAME, nullable=False),
    Column("node", NAME, nullable=False),
    Column("client", NAME, nullable=False),
    Column("public_key", NAME, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    Column("bytes_in", BigInteger, nullable=False),
    Column("bytes_out", BigInteger, nullable=False),
    Column("refused", BODY, nullable=False),
    Column("gateway", NAME, nullable=False, server_default=""),
    Index("visit_open", "closed_at", "gateway"),
    Index("visit_lease", "lease", "opened_at"),
    Index("visit_person", "person", "opened_at"),
    Index("visit_opened", "opened_at"),
    **MARIADB,
)
