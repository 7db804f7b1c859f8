"""What use cases work with.  `bootstrap.App` provides it; each part is made when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from essaim.couriers import Courier
    from essaim.engine.execute import Engine
    from essaim.images.cache import Images
    from essaim.model.invites import SignupMode
    from essaim.model.journal import Journal
    from essaim.model.machines import Driver
    from essaim.model.school import Addresses, Desktops, Directory, Names
    from essaim.model.stacks import Site
    from essaim.remote.keyring import Keyring
    from essaim.remote.signing_keys import SigningKeys
    from essaim.remote.ssh import Remote
    from essaim.store.audit.log import AuditLog
    from essaim.store.breached_passwords import BreachedPasswords
    from essaim.store.classes import Classes
    from essaim.store.events import Events
    from essaim.store.fleet import Fleet
    from essaim.store.invites import Invites
    from essaim.store.leases import Leases
    from essaim.store.logs import CommandLogs
    from essaim.store.metrics import Metrics
    from essaim.store.people import People
    from essaim.store.rosters import Rosters
    from essaim.store.settings import Settings
    from essaim.store.stacks import Stacks
    from essaim.store.tries import Tries
    from essaim.store.turns import Turns
    from essaim.store.visits import Visits
    from essaim.store.workers import Workers
    from essaim.workflows.lending import Lending
    from essaim.workflows.ways import Ways


class Services(Protocol):
    """The parts of one control plane."""

    @property
    def home(self) -> Path:
        """Where this control plane keeps its state."""

    @property
    def journal(self) -> Journal:
        """Runs and their steps."""

    @property
    def stacks(self) -> Stacks:
        """Stacks, machines, applied roles and plans."""

    @property
    def logs(self) -> CommandLogs:
        """What commands printed."""

    @property
    def people(self) -> People:
        """People and their sessions."""

    @property
    def invites(self) -> Invites:
        """Codes with which people sign up."""

    @property
    def signup_mode(self) -> SignupMode:
        """What sign-up asks for."""

    @property
    def breached(self) -> BreachedPasswords | None:
        """Passwords that were stolen somewhere; None when the administrator named no list."""

    @property
    def fleet(self) -> Fleet:
        """Nodes."""

    @property
    def leases(self) -> Leases:
        """Leases and the queue."""

    @property
    def events(self) -> Events:
        """What happened."""

    @property
    def audit(self) -> AuditLog:
        """Who did what."""

    @property
    def visits(self) -> Visits:
        """Who came through the gateway."""

    @property
    def metrics(self) -> Metrics:
        """Figures for monitoring."""

    @property
    def turns(self) -> Turns:
        """Whose turn it is, of the processes of one control plane."""

    @property
    def broker(self) -> str:
        """Where messages for workers go; nothing when this process carries runs itself."""

    @property
    def site_queues(self) -> bool:
        """Whether the runs of each site are for that site's workers alone."""

    @property
    def workers(self) -> Workers:
        """Which processes of this control plane live."""

    @property
    def settings(self) -> Settings:
        """Secrets and choices that all processes share."""

    @property
    def rosters(self) -> Rosters:
        """Rosters and their students."""

    @property
    def classes(self) -> Classes:
        """Who teaches a roster, and when."""

    @property
    def tries(self) -> Tries:
        """Who tried how often, at all processes together."""

    @property
    def ways(self) -> Ways:
        """Ways to nodes through their tunnels."""

    @property
    def keyring(self) -> Keyring:
        """SSH keys."""

    @property
    def signing_keys(self) -> Mapping[str, SigningKeys]:
        """Secrets that the processes sign with, by kind: see `usecases.signing_keys`."""

    @property
    def images(self) -> Images:
        """The image cache."""

    @property
    def remote(self) -> Remote:
        """SSH connections."""

    @property
    def lending(self) -> Lending:
        """What leases need."""

    @property
    def engine(self) -> Engine:
        """Carries out runs."""

    @property
    def courier(self) -> Courier:
        """Brings due runs to the engine."""

    def driver(self, site: Site) -> Driver:
        """The driver of a site."""

    def names(self, site: Site) -> Names | None:
        """The DNS server of a site; None when it has none."""

    def addresses(self, site: Site) -> Addresses | None:
        """The DHCP server of a site; None when it has none."""

    def desktops(self, site: Site) -> Desktops | None:
        """The remote desktop gateway of a site; None when it has none."""

    def directory(self, site: Site) -> Directory | None:
        """Where the school of a site keeps its people; None when it does not say."""
