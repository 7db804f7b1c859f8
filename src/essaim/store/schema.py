"""The tables, once, for SQLite, MariaDB and PostgreSQL.

Ids and names are at most 190 characters, the longest that MariaDB indexes twice in one key.  They
compare byte by byte everywhere, so that a range such as `a/` … `a0` means the same on all three.
Times ending in `_at` are milliseconds since 1970 in the database's clock.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Table, false, true

from essaim.store.audit.table import audit
from essaim.store.columns import BODY, MARIADB, NAME, SERIAL, WORD, metadata
from essaim.store.invites import invite
from essaim.store.limits import adaptive, adaptive_use
from essaim.store.meeting import attempt, challenge, gateway, visit
from essaim.store.processes import scaler, scaling, tunnel, worker
from essaim.store.reservations import reservation
from essaim.store.school import roster, student, teacher, timetable

__all__ = [
    "adaptive",
    "adaptive_use",
    "applied",
    "attempt",
    "audit",
    "challenge",
    "command_log",
    "enrolment",
    "event",
    "gateway",
    "hold",
    "invite",
    "lease",
    "machine",
    "metadata",
    "node",
    "old_boot",
    "person",
    "plan",
    "project",
    "pulse",
    "refresh",
    "reservation",
    "roster",
    "run",
    "scaler",
    "scaling",
    "session",
    "setting",
    "slot",
    "slot_use",
    "stack",
    "step",
    "student",
    "teacher",
    "timetable",
    "tunnel",
    "visit",
    "wait",
    "worker",
]

run = Table(
    "run",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("root", NAME, nullable=False),
    Column("parent", NAME),
    Column("workflow", NAME, nullable=False),
    Column("subject", NAME, nullable=False),
    Column("input", BODY, nullable=False),
    Column("who", NAME, nullable=False),
    Column("state", WORD, nullable=False),
    Column("undoing", Boolean, nullable=False),
    Column("note", BODY, nullable=False),
    Column("error", BODY, nullable=False),
    Column("owner", NAME, nullable=False),
    Column("epoch", Integer, nullable=False),
    # A child ended while this run was being carried: its next pause is cut short.
    Column("woken", Boolean, nullable=False),
    Column("holds", NAME),
    Column("waits_slot", NAME),
    Column("slot_since", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    # When it may be claimed: a READY run's waking time, a RUNNING run's end of lease, else NULL.
    # One column for both makes a claim one walk along one index.
    Column("due_at", BigInteger),
    Column("finished_at", BigInteger),
    # Whose workers may carry it; empty for anybody's.
    Column("site", NAME, nullable=False, server_default=""),
    # When a message about it was last sent: one from before `due_at` said something else.
    Column("sent_at", BigInteger, nullable=False, server_default="0"),
    Index("run_due", "due_at", "id"),
    Index("run_root", "root"),
    Index("run_parent", "parent"),
    Index("run_holds", "holds"),
    Index("run_slot", "waits_slot"),
    Index("run_created", "created_at"),
    **MARIADB,
)

step = Table(
    "step",
    metadata,
    Column("run", NAME, primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("state", WORD, nullable=False),
    Column("output", BODY),
    Column("attempts", Integer, nullable=False),
    Column("error", BODY, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Index("step_finished", "finished_at"),
    **MARIADB,
)

wait = Table(
    "wait",
    metadata,
    Column("run", NAME, primary_key=True),
    Column("on_run", NAME, primary_key=True),
    Index("wait_on", "on_run"),
    **MARIADB,
)

hold = Table(
    "hold",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("run", NAME, nullable=False),
    Column("owner", NAME, nullable=False),  # who watches over it; empty when nobody does
    Column("until_at", BigInteger, nullable=False),
    Column("since_at", BigInteger, nullable=False),
    Index("hold_run", "run"),
    **MARIADB,
)

# A row to lock while the users of a slot are counted.
slot = Table("slot", metadata, Column("name", NAME, primary_key=True), **MARIADB)

slot_use = Table(
    "slot_use",
    metadata,
    Column("run", NAME, primary_key=True),
    Column("slot", NAME, nullable=False),
    Index("slot_use_slot", "slot"),
    **MARIADB,
)

command_log = Table(
    "command_log",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("run", NAME, nullable=False),
    Column("step", NAME, nullable=False),
    Column("machine", NAME, nullable=False),
    Column("command", BODY, nullable=False),
    Column("exit_code", Integer, nullable=False),
    Column("output", BODY, nullable=False),
    Column("started", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    Index("command_log_run", "run"),
    Index("command_log_machine", "machine"),
    **MARIADB,
)

stack = Table(
    "stack",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("body", BODY, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    **MARIADB,
)

machine = Table(
    "machine",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("stack", NAME, nullable=False),
    Column("body", BODY, nullable=False),
    Index("machine_stack", "stack"),
    **MARIADB,
)

applied = Table(
    "applied",
    metadata,
    Column("machine", NAME, primary_key=True),
    Column("role", NAME, primary_key=True),
    Column("digest", NAME, nullable=False),
    Column("needs", NAME, nullable=False),
    Column("boot", NAME, nullable=False),
    **MARIADB,
)

plan = Table(
    "plan",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("stack", NAME, nullable=False),
    Column("body", BODY, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("plan_created", "created_at"),
    **MARIADB,
)

# Secrets and choices that all processes of one control plane share.
setting = Table(
    "setting",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("value", BODY, nullable=False),
    **MARIADB,
)

person = Table(
    "person",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("password", BODY, nullable=False),
    Column("role", WORD, nullable=False),
    Column("project", NAME, nullable=False),
    Column("machines", Integer, nullable=False),
    Column("hours", Double, nullable=False),
    Column("disabled", Boolean, nullable=False),
    # It waits for approval.  Then it is disabled too, for processes that do not know this column.
    Column("pending", Boolean, nullable=False, server_default=false()),
    Column("created_at", BigInteger, nullable=False),
    Index("person_name", "name", unique=True),
    **MARIADB,
)

# What the people of a project may have together.  One without a row has no limit of its own.
project = Table(
    "project",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("machines", Integer, nullable=False),
    Column("hours", Double, nullable=False),
    **MARIADB,
)

session = Table(
    "session",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("person", NAME, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column("used_at", BigInteger),
    Column("address", NAME),
    Column("agent", NAME),
    Index("session_person", "person"),
    Index("session_expires", "expires_at"),
    **MARIADB,
)

# Used ones are kept as long as their session: whoever shows one again has stolen it or lost it.
refresh = Table(
    "refresh",
    metadata,
    Column("digest", NAME, primary_key=True),
    Column("session", NAME, nullable=False),
    Column("used_at", BigInteger),
    Index("refresh_session", "session"),
    **MARIADB,
)

enrolment = Table(
    "enrolment",
    metadata,
    Column("digest", NAME, primary_key=True),
    Column("uses", Integer, nullable=False),
    Column("site", NAME, nullable=False),
    Column("labels", BODY, nullable=False),
    Column("who", NAME, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("approve", Boolean),  # its machines wait for approval
    Index("enrolment_expires", "expires_at"),
    **MARIADB,
)

node = Table(
    "node",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("site", NAME, nullable=False),
    Column("cores", Integer, nullable=False),
    Column("memory", Integer, nullable=False),
    Column("labels", BODY, nullable=False),
    Column("address", NAME, nullable=False),
    Column("port", Integer, nullable=False),
    Column("host_key", BODY, nullable=False),
    Column("identity", NAME, nullable=False),  # digest of the host key: one machine, one row
    Column("tunnel", Boolean, nullable=False),
    Column("tunnel_key", BODY, nullable=False),
    Column("agent", NAME, nullable=False),
    Column("state", WORD, nullable=False),
    Column("drained", Boolean, nullable=False),
    Column("lease", NAME),
    Column("reason", BODY, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("waiting", Boolean),  # for approval: drained until then
    Index("node_identity", "identity", unique=True),
    Index("node_state", "state", "cores", "memory", "id"),
    Index("node_lease", "lease"),
    **MARIADB,
)

# What changes with every heartbeat and check.  Apart from `node`, so that renting, which passes
# over locked nodes, is never in the way of a heartbeat, nor a heartbeat in the way of renting.
pulse = Table(
    "pulse",
    metadata,
    Column("node", NAME, primary_key=True),
    Column("credential", NAME, nullable=False),
    Column("boot", NAME, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("load", Double, nullable=False),
    Column("beat_at", BigInteger, nullable=False),
    Column("checked_at", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Index("pulse_credential", "credential", unique=True),
    **MARIADB,
)

# Boots that are over: a heartbeat of one of them is a copy.
old_boot = Table(
    "old_boot",
    metadata,
    Column("node", NAME, primary_key=True),
    Column("boot", NAME, primary_key=True),
    Column("ended_at", BigInteger, nullable=False),
    **MARIADB,
)

lease = Table(
    "lease",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("person", NAME, nullable=False),
    Column("project", NAME, nullable=False),
    Column("request", NAME),  # the idempotency key of whoever asked
    Column("machines", Integer, nullable=False),
    Column("cores", Integer, nullable=False),
    Column("memory", Integer, nullable=False),
    Column("labels", BODY, nullable=False),
    Column("site", NAME, nullable=False),
    Column("seconds", BigInteger, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("home", Boolean, nullable=False, server_default=true()),
    Column("hold", BigInteger, nullable=False, server_default="0"),
    Column("public_key", BODY, nullable=False),
    Column("state", WORD, nullable=False),
    Column("nodes", BODY, nullable=False),
    Column("run", NAME, nullable=False),
    Column("reason", BODY, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("granted_at", BigInteger),
    Column("expires_at", BigInteger),
    Column("warned_at", BigInteger),
    Column("held_at", BigInteger),
    Column("ended_at", BigInteger),  # set when, and only when, it no longer counts
    Index("lease_request", "person", "request", unique=True),
    Index("lease_person", "person", "ended_at"),
    Index("lease_project", "project", "ended_at"),
    Index("lease_state", "state", "expires_at"),
    Index("lease_asked", "asked_at"),
    **MARIADB,
)

# Told in the transaction of what happened.  Numbers of concurrent transactions become visible in
# any order, so who reads gives each event its `place` first, one after the other: `id` is how they
# were written, `place` how they are read, and behind a place nothing ever appears.
event = Table(
    "event",
    metadata,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("place", BigInteger),
    Column("at", BigInteger, nullable=False),
    Column("kind", NAME, nullable=False),
    Column("body", BODY, nullable=False),
    Column("lease", NAME, nullable=False),
    Column("node", NAME, nullable=False),
    Column("person", NAME, nullable=False),
    Column("urgent", Boolean, nullable=False),
    Column("once", NAME),
    Index("event_place", "place", "id"),
    Index("event_person", "person", "place"),
    Index("event_once", "once", unique=True),
    **MARIADB,
)
