"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMTEXT

revision = "0001"
down_revision = None

# Spelled out rather than taken from `store.schema`: a revision must stay what it was.
NAME = sa.String(190).with_variant(sa.String(190, collation="C"), "postgresql")
WORD = sa.String(16)
BODY = sa.Text().with_variant(MEDIUMTEXT(), "mysql", "mariadb")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.BigInteger()
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
    """Make the first tables."""
    _runs()
    _queues()
    _stacks()


def _runs() -> None:
    _table(
        "run",
        _key("id"),
        _needed("root"),
        sa.Column("parent", NAME),
        _needed("workflow"),
        _needed("subject"),
        _needed("input", BODY),
        _needed("who"),
        _needed("state", WORD),
        _needed("undoing", sa.Boolean()),
        _needed("note", BODY),
        _needed("error", BODY),
        _needed("owner"),
        _needed("epoch", sa.Integer()),
        _needed("woken", sa.Boolean()),
        sa.Column("holds", NAME),
        sa.Column("waits_slot", NAME),
        sa.Column("slot_since", TIME),
        _needed("created_at", TIME),
        sa.Column("due_at", TIME),
        sa.Column("finished_at", TIME),
    )
    _index("run_due", "run", ["due_at", "id"])
    _index("run_root", "run", ["root"])
    _index("run_parent", "run", ["parent"])
    _index("run_holds", "run", ["holds"])
    _index("run_slot", "run", ["waits_slot"])
    _index("run_created", "run", ["created_at"])
    _table(
        "step",
        _key("run"),
        _key("name"),
        _needed("position", sa.Integer()),
        _needed("state", WORD),
        sa.Column("output", BODY),
        _needed("attempts", sa.Integer()),
        _needed("error", BODY),
        _needed("started_at", TIME),
        sa.Column("finished_at", TIME),
    )
    _index("step_finished", "step", ["finished_at"])
    _table(
        "command_log",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        _needed("run"),
        _needed("step"),
        _needed("machine"),
        _needed("command", BODY),
        _needed("exit_code", sa.Integer()),
        _needed("output", BODY),
        _needed("started", sa.Double()),
        _needed("seconds", sa.Double()),
    )
    _index("command_log_run", "command_log", ["run"])
    _index("command_log_machine", "command_log", ["machine"])


def _queues() -> None:
    _table("wait", _key("run"), _key("on_run"))
    _index("wait_on", "wait", ["on_run"])
    _table(
        "hold",
        _key("name"),
        _needed("run"),
        _needed("owner"),
        _needed("until_at", TIME),
        _needed("since_at", TIME),
    )
    _index("hold_run", "hold", ["run"])
    _table("slot", _key("name"))
    _table("slot_use", _key("run"), _needed("slot"))
    _index("slot_use_slot", "slot_use", ["slot"])


def _stacks() -> None:
    _table("stack", _key("name"), _needed("body", BODY), _needed("updated_at", TIME))
    _table("machine", _key("name"), _needed("stack"), _needed("body", BODY))
    _index("machine_stack", "machine", ["stack"])
    _table(
        "applied",
        _key("machine"),
        _key("role"),
        _needed("digest"),
        _needed("needs"),
        _needed("boot"),
    )
    _table("plan", _key("id"), _needed("stack"), _needed("body", BODY), _needed("created_at", TIME))
    _index("plan_created", "plan", ["created_at"])


def _table(name: str, *columns: sa.Column[Any]) -> None:
    # MariaDB commits each statement: a migration cut short must be able to start over.
    op.create_table(name, *columns, if_not_exists=True, **OPTIONS)


def _index(name: str, table: str, columns: list[str]) -> None:
    op.create_index(name, table, columns, if_not_exists=True)


def _key(name: str) -> sa.Column[Any]:
    return sa.Column(name, NAME, primary_key=True)


def _needed(name: str, kind: Any = NAME) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)
