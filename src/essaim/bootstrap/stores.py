"""What a control plane keeps in its database, each part made when first used."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from essaim.store.audit.log import AuditLog
    from essaim.store.classes import Classes
    from essaim.store.database import Database
    from essaim.store.events import Events
    from essaim.store.journal import SqlJournal
    from essaim.store.logs import CommandLogs
    from essaim.store.metrics import Metrics
    from essaim.store.reservations import Reservations
    from essaim.store.rosters import Rosters
    from essaim.store.settings import Settings
    from essaim.store.stacks import Stacks
    from essaim.store.tries import Tries
    from essaim.store.turns import Turns
    from essaim.store.visits import Visits
    from essaim.store.workers import Workers


class Stores:
    """The parts that need the database and nothing else."""

    database_url: str
    pool: tuple[int, int] | None  #: connections that are kept, and more for moments
    site_queues: bool

    @functools.cached_property
    def database(self) -> Database:
        """The database, brought up to date."""
        from essaim.store.database import POOL, open_database
        from essaim.store.migrate import migrate

        database = open_database(self.database_url, self.pool or POOL)
        migrate(database)
        if self.site_queues:
            from essaim.store.adding import SITE_QUEUES

            database.engine.update_execution_options(**{SITE_QUEUES: True})
        return database

    @functools.cached_property
    def journal(self) -> SqlJournal:
        """Runs and their steps."""
        from essaim.store.journal import SqlJournal

        return SqlJournal(self.database)

    @functools.cached_property
    def stacks(self) -> Stacks:
        """Stacks, machines, applied roles and plans."""
        from essaim.store.stacks import Stacks

        return Stacks(self.database)

    @functools.cached_property
    def logs(self) -> CommandLogs:
        """What commands printed."""
        from essaim.store.logs import CommandLogs

        return CommandLogs(self.database)

    @functools.cached_property
    def events(self) -> Events:
        """What happened."""
        from essaim.store.events import Events

        return Events(self.database)

    @functools.cached_property
    def audit(self) -> AuditLog:
        """Who did what."""
        from essaim.store.audit.log import AuditLog

        return AuditLog(self.database)

    @functools.cached_property
    def visits(self) -> Visits:
        """Who came through the gateway."""
        from essaim.store.visits import Visits

        return Visits(self.database)

    @functools.cached_property
    def metrics(self) -> Metrics:
        """Figures for monitoring."""
        from essaim.store.metrics import Metrics

        return Metrics(self.database)

    @functools.cached_property
    def turns(self) -> Turns:
        """Whose turn it is, of the processes of this control plane."""
        from essaim.store.turns import Turns

        return Turns(self.database)

    @functools.cached_property
    def workers(self) -> Workers:
        """Which processes of this control plane live."""
        from essaim.store.workers import Workers

        return Workers(self.database)

    @functools.cached_property
    def settings(self) -> Settings:
        """Secrets and choices that all processes share."""
        from essaim.store.settings import Settings

        return Settings(self.database)

    @functools.cached_property
    def reservations(self) -> Reservations:
        """Numbers of sites that one machine at most may have."""
        from essaim.store.reservations import Reservations

        return Reservations(self.database)

    @functools.cached_property
    def rosters(self) -> Rosters:
        """Rosters and their students."""
        from essaim.store.rosters import Rosters

        return Rosters(self.database)

    @functools.cached_property
    def classes(self) -> Classes:
        """Who teaches a roster, and when."""
        from essaim.store.classes import Classes

        return Classes(self.database)

    @functools.cached_property
    def tries(self) -> Tries:
        """Who tried how often, at all processes together."""
        from essaim.store.tries import Tries

        return Tries(self.database)
