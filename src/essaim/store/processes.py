"""The tables in which the processes of one control plane find each other."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Table

from essaim.store.columns import BODY, MARIADB, NAME, SERIAL, WORD, metadata

# One row for each site that a worker carries runs of; other processes have one, without a site.
worker = Table(
    "worker",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("site", NAME, primary_key=True),
    Column("kind", WORD, nullable=False),
    Column("host", NAME, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Index("worker_seen", "seen_at"),
    **MARIADB,
)

# Which gateway a node's own connection ends at, and where that gateway is asked to use it.
tunnel = Table(
    "tunnel",
    metadata,
    Column("node", NAME, primary_key=True),
    Column("gateway", NAME, nullable=False),
    Column("address", NAME, nullable=False),
    Column("port", Integer, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Index("tunnel_gateway", "gateway"),
    **MARIADB,
)

# Which process scales a service.  Its epoch grows each time that another takes over.
scaler = Table(
    "scaler",
    metadata,
    Column("service", NAME, primary_key=True),
    Column("owner", NAME, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Column("until_at", BigInteger, nullable=False),
    **MARIADB,
)

# What was seen of a service, and what was decided: the memory of whoever scales it.
scaling = Table(
    "scaling",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("service", NAME, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("seen", Integer),
    Column("wanted", Integer, nullable=False),
    Column("decided", Integer, nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("pressing", Boolean, nullable=False),
    Column("reason", BODY, nullable=False),
    Column("trouble", BODY, nullable=False),
    Column("counters", BODY, nullable=False),
    Index("scaling_service", "service", "at"),
    Index("scaling_at", "at"),
    **MARIADB,
)
