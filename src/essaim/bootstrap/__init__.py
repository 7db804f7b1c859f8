"""Puts the parts together: the only place that names concrete classes."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.bootstrap.drivers import make_driver
from essaim.bootstrap.servers import Servers
from essaim.model.errors import SetupError
from essaim.model.machines import Closes
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from essaim.couriers import Courier
    from essaim.engine.execute import Engine
    from essaim.images.cache import Images
    from essaim.model.machines import Driver
    from essaim.model.runs import Event
    from essaim.model.stacks import Site
    from essaim.plan.health import Policy
    from essaim.remote.keyring import Keyring
    from essaim.remote.ssh import Remote
    from essaim.store.classes import Classes
    from essaim.store.database import Database
    from essaim.store.events import Events
    from essaim.store.fleet import Fleet
    from essaim.store.journal import SqlJournal
    from essaim.store.leases import Leases
    from essaim.store.logs import CommandLogs
    from essaim.store.metrics import Metrics
    from essaim.store.people import People
    from essaim.store.reservations import Reservations
    from essaim.store.rosters import Rosters
    from essaim.store.settings import Settings
    from essaim.store.stacks import Stacks
    from essaim.store.tries import Tries
    from essaim.store.turns import Turns
    from essaim.store.visits import Visits
    from essaim.store.workers import Workers
    from essaim.workflows.lending import Lending
    from essaim.workflows.schooling import School
    from essaim.workflows.ways import Ways

#: How many may do a thing at once on a site that does not say.
SLOTS = {"create": 16, "start": 8, "destroy": 16, "paced": 100_000}
PROVISIONERS = ("native", "ansible")
#: Connections to a database server, kept and for moments, by kind of process: as many as it has
#: threads that ask.  Any other kind has what `store.database` says.  An API under load needs all of
#: them all the time, and to open one costs more than most requests do.
POOLS = {"api": (40, 0), "controller": (4, 16), "gateway": (4, 16), "check": (1, 3)}


def state_home(environ: Mapping[str, str]) -> Path:
    """Where the control plane keeps its journal, keys and machines."""
    if environ.get("ESSAIM_HOME"):
        return Path(environ["ESSAIM_HOME"]).absolute()
    base = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "essaim"


def cache_home(environ: Mapping[str, str]) -> Path:
    """Where images are kept: everything here can be made again."""
    if environ.get("ESSAIM_CACHE"):
        return Path(environ["ESSAIM_CACHE"]).absolute()
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "essaim"


def _pool(said: str) -> tuple[int, int] | None:
    """Read `8` or `8+32`: connections that are kept, and more for moments."""
    if not said:
        return None
    kept, _, more = said.partition("+")
    if not kept.isdigit() or not (more or "0").isdigit() or not int(kept):
        raise SetupError(
            f"ESSAIM_POOL={said}: this is no number of connections", hint="say 8, or 8+32"
        )
    return int(kept), int(more or 0)


class App:
    """One control plane.  Parts are made, and their libraries imported, when first used."""

    def __init__(self, environ: Mapping[str, str] = os.environ, *, kind: str = "command") -> None:
        self.home = state_home(environ)
        self.keys = Path(environ.get("ESSAIM_KEYS") or self.home / "keys").absolute()
        self.homes = Path(environ.get("ESSAIM_HOMES") or self.home / "homes").absolute()
        self.kind = kind  #: of process: api, controller, gateway, worker, serve, command, check
        self.pool = _pool(environ.get("ESSAIM_POOL") or "") or POOLS.get(kind)
        #: Whether runs are carried in this process when there is no broker.
        self.carries = kind not in ("api", "gateway", "check")
        self.cache = cache_home(environ)
        self.database_url = environ.get("ESSAIM_DATABASE") or f"sqlite:///{self.home}/essaim.db"
        #: Where messages for workers go: `redis://…` or `amqp://…`.  Without it this process
        #: carries runs itself.
        self.broker = environ.get("ESSAIM_BROKER") or ""
        #: The runs of each site are for that site's workers alone.
        self.site_queues = environ.get("ESSAIM_SITE_QUEUES", "") not in {"", "0"}
        #: Whose runs this process carries: all, or those of some sites ("" for runs of no site).
        self.sites: Collection[str] | None = None
        #: Seconds between heartbeats and checks of nodes; nothing for the usual.
        self.interval = float(environ.get("ESSAIM_INTERVAL") or 0)
        #: Who makes the accounts of leases: the helper on the machine, or a playbook.
        self.provisioner = environ.get("ESSAIM_PROVISIONER") or PROVISIONERS[0]
        if self.provisioner not in PROVISIONERS:
            raise SetupError(
                f"ESSAIM_PROVISIONER={self.provisioner}: there is none of that name",
                hint=meant(self.provisioner, PROVISIONERS, kind="there are"),
            )
        self.playbook = Path(path).absolute() if (path := environ.get("ESSAIM_PLAYBOOK")) else None
        #: What clients may forward through the gateway: ports of their machine, or none.
        self.forwarding = environ.get("ESSAIM_FORWARDING") or "machine"
        #: A command finishes what it was asked for, not what somebody else has stopped; a server
        #: takes all that is due.
        self.own_only = True
        #: Most threads that carry runs in this process.
        self.threads = 32
        #: Whoever wants to see what runs do; called from worker threads.
        self.watch: Callable[[Event], None] = lambda _event: None
        self._servers = Servers(lambda: self.plane)
        self.names, self.addresses = self._servers.names, self._servers.addresses
        self.desktops, self.directory = self._servers.desktops, self._servers.directory
        self._drivers: dict[str, tuple[Site, Driver]] = {}
        self._making = threading.Lock()

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
    def people(self) -> People:
        """People and their sessions."""
        from essaim.store.people import People

        return People(self.database)

    @functools.cached_property
    def policy(self) -> Policy:
        """How often nodes are looked at, and when they are given up."""
        from essaim.plan.health import Policy

        return Policy(interval=self.interval) if self.interval else Policy()

    @functools.cached_property
    def fleet(self) -> Fleet:
        """Nodes."""
        from essaim.store.fleet import Fleet

        return Fleet(self.database, self.policy)

    @functools.cached_property
    def leases(self) -> Leases:
        """Leases and the queue."""
        from essaim.store.leases import Leases

        return Leases(self.database, self.policy)

    @functools.cached_property
    def events(self) -> Events:
        """What happened."""
        from essaim.store.events import Events

        return Events(self.database)

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
    def plane(self) -> str:
        """Which control plane this is, for the marks that it leaves on sites."""
        return self.settings.secret("plane").hex()[:12]

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
    def school(self) -> School:
        """What the steps of students' machines act through."""
        from essaim.workflows.schooling import School

        return School(
            rosters=self.rosters,
            journal=self.journal,
            names=self.names,
            addresses=self.addresses,
            desktops=self.desktops,
        )

    @functools.cached_property
    def tries(self) -> Tries:
        """Who tried how often, at all processes together."""
        from essaim.store.tries import Tries

        return Tries(self.database)

    @functools.cached_property
    def ways(self) -> Ways:
        """Ways to nodes through their tunnels."""
        from essaim.store.tunnels import Tunnels
        from essaim.workflows.ways import Ways

        key = functools.cache(lambda: self.settings.secret("gateway.inner"))
        return Ways(Tunnels(self.database), key)

    @functools.cached_property
    def keyring(self) -> Keyring:
        """SSH keys."""
        from essaim.remote.keyring import Keyring

        return Keyring(self.keys)

    @functools.cached_property
    def images(self) -> Images:
        """The image cache."""
        from essaim.images.cache import Images

        return Images(self.cache / "images")

    @functools.cached_property
    def remote(self) -> Remote:
        """SSH connections."""
        from essaim.remote.ssh import Remote

        return Remote(self.keyring)

    def driver(self, site: Site) -> Driver:
        """The driver of a site, one for each as long as its settings stay the same."""
        known = self._drivers.get(site.name)
        if known is None or known[0] != site:
            with self._making:
                known = self._drivers.get(site.name)
                if known is None or known[0] != site:
                    known = self._drivers[site.name] = (site, make_driver(self, site))
        return known[1]

    def slots(self, name: str) -> int:
        """How many may hold a slot such as `start:local` at once."""
        kind, _, site = name.partition(":")
        own = self._drivers[site][0].slots if site in self._drivers else {}
        return own.get(kind, SLOTS.get(kind, 1))

    @functools.cached_property
    def lending(self) -> Lending:
        """What leases need."""
        from essaim.bootstrap.lending import make_lending

        return make_lending(self)

    @functools.cached_property
    def engine(self) -> Engine:
        """Carries out runs."""
        from essaim.engine.execute import Engine
        from essaim.engine.owner import this_owner
        from essaim.workflows.table import WORKFLOWS
        from essaim.workflows.tools import Tools

        tools = Tools(
            driver=self.driver,
            images=self.images,
            remote=self.remote,
            keyring=self.keyring,
            stacks=self.stacks,
            logs=self.logs,
            lending=self.lending,
            school=self.school,
        )
        return Engine(
            self.journal,
            WORKFLOWS,
            tools,
            owner=this_owner(),
            emit=self._tell,
            slots=self.slots,
            own_only=self.own_only,
            sites=self.sites,
        )

    def _tell(self, event: Event) -> None:
        self.watch(event)  # looked up each time: who watches changes with what is followed

    @functools.cached_property
    def courier(self) -> Courier:
        """Brings due runs to the engine of this process, or to workers when there is a broker."""
        if self.broker:
            from essaim.couriers.celery import CeleryCourier

            served = self.workers.sites
            return CeleryCourier(self.journal, self.broker, tell=self._tell, served=served)
        if not self.carries:
            from essaim.couriers.leaving import LeavingCourier

            return LeavingCourier(self.journal)
        from essaim.couriers.threads import ThreadCourier

        return ThreadCourier(self.engine, self.threads)

    def close(self) -> None:
        """Let go of what was opened."""
        made = vars(self)
        if "courier" in made:
            self.courier.stop()
        if "engine" in made and self.broker:
            self.engine.close()  # else the courier's threads have it, and close it
        if "remote" in made:
            self.remote.close()
        self._servers.close()
        for _site, driver in self._drivers.values():
            if isinstance(driver, Closes):
                driver.close()
        if "database" in made:
            self.database.close()
