"""What commands printed on machines, kept for whoever asks later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from essaim.model.runs import CommandLog
from essaim.store.schema import command_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.store.database import Database

#: The most that is kept of one command's output.
MOST = 256 * 1024


class CommandLogs:
    """Adds and reads logs of commands."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, logs: Sequence[CommandLog]) -> None:
        """Keep these, in one transaction.  Long outputs keep their beginning and their end."""
        rows = [
            {
                "run": log.run,
                "step": log.step,
                "machine": log.machine,
                "command": cut(log.command),
                "exit_code": log.exit_code,
                "output": cut(log.output),
                "started": log.started_at,
                "seconds": log.seconds,
            }
            for log in logs
        ]
        if rows:
            self._database.write(lambda c: c.execute(sa.insert(command_log), rows))

    def read(self, *, run: str = "", machine: str = "", limit: int = 1000) -> list[CommandLog]:
        """Return the latest `limit`, oldest first: of a run and those below it, or a machine."""
        wanted = sa.select(command_log).order_by(command_log.c.id.desc()).limit(limit)
        if run:
            # The ids of those below are `RUN.…`; `/` is the character after the dot.
            below = sa.and_(command_log.c.run >= f"{run}.", command_log.c.run < f"{run}/")
            wanted = wanted.where(sa.or_(command_log.c.run == run, below))
        if "/" in machine:
            wanted = wanted.where(command_log.c.machine == machine)
        elif machine:
            # `0` is the character after the slash.
            its = sa.and_(
                command_log.c.machine > f"{machine}/", command_log.c.machine < f"{machine}0"
            )
            wanted = wanted.where(its)
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return [
            CommandLog(
                run=row.run,
                step=row.step,
                machine=row.machine,
                command=row.command,
                exit_code=row.exit_code,
                output=row.output,
                started_at=row.started,
                seconds=row.seconds,
            )
            for row in reversed(rows)
        ]


def cut(text: str, most: int = MOST) -> str:
    """Keep a text, or its beginning and end and a line that says what is missing."""
    # No database but SQLite stores NUL in text.
    raw = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")
    if len(raw) <= most:
        return raw.decode()
    head, tail = raw[: most // 2], raw[-(most // 2) :]
    missing = len(raw) - len(head) - len(tail)
    middle = f"\n… {missing} of {len(raw)} bytes are not kept …\n"
    return head.decode(errors="ignore") + middle + tail.decode(errors="ignore")
