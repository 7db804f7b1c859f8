"""People, nodes and leases."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0002"
down_revision = "0001"

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
WORD = sa.String(16)
BODY = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
TIME = sa.BigInteger()
NUMBER = sa.Integer()
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
    """Add the tables of the fleet; those there before are not touched."""
    _table("setting", _key("name"), _needed("value", BODY))
    _people()
    _nodes()
    _leases()


def _people() -> None:
    _table(
        "person",
        _key("id"),
        _needed("name"),
        _needed("password", BODY),
        _needed("role", WORD),
        _needed("project"),
        _needed("machines", NUMBER),
        _needed("hours", sa.Double()),
        _needed("disabled", sa.Boolean()),
        _needed("created_at", TIME),
    )
    _index("person_name", "person", ["name"], unique=True)
    _table("project", _key("name"), _needed("machines", NUMBER), _needed("hours", sa.Double()))
    _table(
        "session",
        _key("id"),
        _needed("person"),
        _needed("created_at", TIME),
        _needed("expires_at", TIME),
        sa.Column("revoked_at", TIME),
    )
    _index("session_person", "session", ["person"])
    _index("session_expires", "session", ["expires_at"])
    _table("refresh", _key("digest"), _needed("session"), sa.Column("used_at", TIME))
    _index("refresh_session", "refresh", ["session"])


def _nodes() -> None:
    _table(
        "enrolment",
        _key("digest"),
        _needed("uses", NUMBER),
        _needed("site"),
        _needed("labels", BODY),
        _needed("who"),
        _needed("created_at", TIME),
        _needed("expires_at", TIME),
    )
    _index("enrolment_expires", "enrolment", ["expires_at"])
    _table(
        "node",
        _key("id"),
        _needed("name"),
        _needed("site"),
        _needed("cores", NUMBER),
        _needed("memory", NUMBER),
        _needed("labels", BODY),
        _needed("address"),
        _needed("port", NUMBER),
        _needed("host_key", BODY),
        _needed("identity"),
        _needed("tunnel", sa.Boolean()),
        _needed("tunnel_key", BODY),
        _needed("agent"),
        _needed("state", WORD),
        _needed("drained", sa.Boolean()),
        sa.Column("lease", NAME),
        _needed("reason", BODY),
        _needed("created_at", TIME),
    )
    _index("node_identity", "node", ["identity"], unique=True)
    _index("node_state", "node", ["state", "cores", "memory", "id"])
    _index("node_lease", "node", ["lease"])
    _table(
        "pulse",
        _key("node"),
        _needed("credential"),
        _needed("boot"),
        _needed("seq", TIME),
        _needed("load", sa.Double()),
        _needed("beat_at", TIME),
        _needed("checked_at", TIME),
        _needed("failures", NUMBER),
    )
    _index("pulse_credential", "pulse", ["credential"], unique=True)
    _table("old_boot", _key("node"), _key("boot"), _needed("ended_at", TIME))


def _leases() -> None:
    _table(
        "lease",
        _key("id"),
        _needed("person"),
        _needed("project"),
        sa.Column("request", NAME),
        _needed("machines", NUMBER),
        _needed("cores", NUMBER),
        _needed("memory", NUMBER),
        _needed("labels", BODY),
        _needed("site"),
        _needed("seconds", TIME),
        _needed("priority", NUMBER),
        _needed("public_key", BODY),
        _needed("state", WORD),
        _needed("nodes", BODY),
        _needed("run"),
        _needed("reason", BODY),
        _needed("asked_at", TIME),
        sa.Column("granted_at", TIME),
        sa.Column("expires_at", TIME),
        sa.Column("warned_at", TIME),
        sa.Column("ended_at", TIME),
    )
    _index("lease_request", "lease", ["person", "request"], unique=True)
    _index("lease_person", "lease", ["person", "ended_at"])
    _index("lease_project", "lease", ["project", "ended_at"])
    _index("lease_state", "lease", ["state", "expires_at"])
    _index("lease_asked", "lease", ["asked_at"])


def _table(name: str, *columns: sa.Column[Any]) -> None:
    # MariaDB commits each statement: a migration cut short must be able to start over.
    op.create_table(name, *columns, if_not_exists=True, **OPTIONS)


def _index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    op.create_index(name, table, columns, if_not_exists=True, unique=unique)


def _key(name: str) -> sa.Column[Any]:
    return sa.Column(name, NAME, primary_key=True)


def _needed(name: str, kind: Any = NAME) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
