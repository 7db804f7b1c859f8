"""What the people of a project may have together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from essaim.model.fleet import Project
from essaim.store.database import Database
from essaim.store.rows import to_project
from essaim.store.schema import project

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

#: What a project has whose limit for it nobody named: more than there is.
UNLIMITED = {"machines": 1_000_000, "hours": 1e9}


class ProjectLimits:
    """Keeps the limits of projects."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def projects(self) -> list[Project]:
        """List the projects that have a limit of their own, by name."""
        wanted = sa.select(project).order_by(project.c.name)
        return [to_project(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def put_project(self, name: str, values: Mapping[str, Any]) -> Project:
        """Limit what the people of a project may have together; what is not named stays.

        A project that had no limits gets only those named.
        """
        its = project.c.name == name
        old = self._database.insert_missing(project).values(name=name, **UNLIMITED)

        def body(connection: Connection) -> Project:
            connection.execute(old)
            if values:
                connection.execute(sa.update(project).where(its).values(**values))
            return to_project(connection.execute(sa.select(project).where(its)).one())

        return self._database.write(body)
