"""Puts the parts together: the only place that names concrete classes."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.bootstrap.drivers import make_driver
from essaim.bootstrap.identity import Identity
from essaim.bootstrap.pools import POOLS, read_pool
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
    from essaim.remote.signing_keys import SigningKeys
    from essaim.remote.ssh import Remote
    from essaim.store.fleet import Fleet
    from essaim.store.leases import Leases
    from essaim.workflows.lending import Lending
    from essaim.workflows.schooling import School
    from essaim.workflows.ways import Ways

#: How many may do a thing at once on a site that does not say.
SLOTS = {"create": 16, "start": 8, "destroy": 16, "paced": 100_000}
PROVISIONERS = ("native", "ansible")


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


class App(Identity):
    """One control plane.  Parts are made, and their libraries imported, when first used."""

    def __init__(self, environ: Mapping[str, str] = os.environ, *, kind: str = "command") -> None:
        super().__init__(environ)
        self.home = state_home(environ)
        self.keys = Path(environ.get("ESSAIM_KEYS") or self.home / "keys").absolute()
        #: The one key that gateways, controllers and workers share may be in a folder of its own.
        self.inner_keys = Path(environ.get("ESSAIM_INNER_KEYS") or self.keys).absolute()
        self.homes = Path(environ.get("ESSAIM_HOMES") or self.home / "homes").absolute()
        self.kind = kind  #: of process: api, controller, gateway, worker, serve, command, check
        self.pool = read_pool(environ.get("ESSAIM_POOL") or "") or POOLS.get(kind)
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
        #: Addresses or networks that gateways come from, as machines see them; none: any.
        self.gateway_sources = (environ.get("ESSAIM_GATEWAY_SOURCES") or "").split()
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
    def plane(self) -> str:
        """Which control plane this is, for the marks that it leaves on sites."""
        return self.settings.secret("plane").hex()[:12]

    @functools.cached_property
    def school(self) -> School:
        """What the steps of students' machines act through."""
        from essaim.bootstrap.lending import make_school

        return make_school(self)

    @functools.cached_property
    def ways(self) -> Ways:
        """Ways to nodes through their tunnels."""
        from essaim.store.tunnels import Tunnels
        from essaim.workflows.ways import Ways

        return Ways(Tunnels(self.database), self.signing_keys["inner"])

    @functools.cached_property
    def keyring(self) -> Keyring:
        """SSH keys."""
        from essaim.remote.keyring import Keyring

        return Keyring(self.keys)

    @functools.cached_property
    def signing_keys(self) -> Mapping[str, SigningKeys]:
        """Secrets that the processes sign with, by kind."""
        from essaim.bootstrap.signing_keys import make_signing_keys

        folders = {"access": self.keys, "inner": self.inner_keys}
        return make_signing_keys(folders, lambda: self.settings)

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
