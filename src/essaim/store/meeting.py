"""Tables: where gateways are, visits, tries, what joining machines sign, what programs show."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, Table

from essaim.store.columns import BODY, MARIADB, NAME, WORD, metadata

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

# A text that a machine signs with its host key when it joins, once, as a digest.
challenge = Table(
    "challenge",
    metadata,
    Column("digest", NAME, primary_key=True),
    Column("enrolment", NAME, nullable=False),  # the digest of the token it was given for
    Column("expires_at", BigInteger, nullable=False),
    Index("challenge_expires", "expires_at"),
    **MARIADB,
)

# What programs show instead of a session.  Only the digest is kept.
api_token = Table(
    "api_token",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("digest", NAME, nullable=False),
    Column("person", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("scope", WORD, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger),
    Index("api_token_digest", "digest", unique=True),
    Index("api_token_person", "person"),
    **MARIADB,
)
