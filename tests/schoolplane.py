"""A control plane with a roster on a site of files, and everybody who has to do with it."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from pathlib import Path

import filed
from essaim.config.rosters import Roster
from essaim.couriers.threads import ThreadCourier
from essaim.engine.execute import Engine
from essaim.engine.owner import this_owner
from essaim.model.fleet import Quota, Role, User
from essaim.model.invites import SignupMode
from essaim.model.school import Person
from essaim.model.stacks import Image, Site, Size
from essaim.store.audit.log import AuditLog
from essaim.store.classes import Classes
from essaim.store.database import migrate, open_database
from essaim.store.invites import Invites
from essaim.store.journal import SqlJournal
from essaim.store.people import People
from essaim.store.rosters import Rosters
from essaim.store.settings import Settings
from essaim.store.stacks import Stacks
from essaim.store.turns import Turns
from essaim.store.workers import Workers
from essaim.usecases import rosters as use
from essaim.workflows.schooling import School
from essaim.workflows.table import WORKFLOWS
from essaim.workflows.tools import Tools
from signing import signing_keys

PLENTY = Quota(machines=1000, hours=1e6)


def roster(**changes) -> Roster:
    values = {
        "name": "promo",
        "site": Site(name="pve", driver="proxmox"),
        "image": Image(name="gui", builder="template", digest="d" * 64),
        "size": Size(cores=1, memory=128),
        "cidr": "10.60.0.0/20",
        "first": "10.60.0.10",
        "last": "10.60.15.250",
        "domain": "school.example.org",
        "prefix": "vm-",
        "protocol": "rdp",
        "port": 3389,
    }
    return Roster(**{**values, **changes})


def people(*logins: str) -> list[Person]:
    return [Person(login=login, name=login.capitalize(), group="a") for login in logins]


class Plane:
    """What the use cases of rosters ask of their services: real but for the site."""

    def __init__(self, url: str, folder: Path, *, threads: int = 4) -> None:
        self.database = open_database(url)
        migrate(self.database)
        self.people = People(self.database)
        self.invites = Invites(self.database)
        self.signup_mode, self.breached = SignupMode.OPEN, None  # tests choose it
        self.signing_keys = signing_keys(self.database)
        self.journal = SqlJournal(self.database)
        self.stacks = Stacks(self.database)
        self.rosters = Rosters(self.database)
        self.audit = AuditLog(self.database)
        self.classes = Classes(self.database)
        self.turns = Turns(self.database)
        self.settings = Settings(self.database)
        self.workers = Workers(self.database)
        self.broker, self.site_queues = "", False
        self.site = filed.Site(folder)
        self.keyring = filed.Keyring()
        self.lacks: set[str] = set()  #: servers that the site does not have
        tools = Tools(
            driver=self.driver,
            images=filed.Images(),
            remote=filed.Remote(),
            keyring=filed.Keyring(),
            stacks=self.stacks,
            logs=None,
            school=School(
                rosters=self.rosters,
                journal=self.journal,
                names=self.names,
                addresses=self.addresses,
                desktops=self.desktops,
            ),
        )
        self.engine = Engine(
            self.journal, WORKFLOWS, tools, owner=this_owner(), slots=lambda _name: 4,
            random=lambda: 0.0,
        )  # fmt: skip
        self.courier = ThreadCourier(self.engine, threads=threads)

    def driver(self, _site: Site):
        return self.site.driver

    def names(self, _site: Site):
        return None if "names" in self.lacks else self.site.names

    def addresses(self, _site: Site):
        return None if "addresses" in self.lacks else self.site.addresses

    def desktops(self, _site: Site):
        return None if "desktops" in self.lacks else self.site.desktops

    def directory(self, _site: Site):
        return types.SimpleNamespace(members=lambda group: people("alice", "bob"))

    def apply(self, wanted: Roster, them: list[Person], **how) -> use.Planned:
        """Apply a roster and wait for the end of it."""
        planned = use.plan(self, wanted, them, **how)
        if run := use.apply(self, planned):
            assert self.courier.wait(run, timeout=120)
        return planned

    def settle(self, login: str, name: str = "promo") -> None:
        """Wait until nothing is done with a machine."""
        run = self.rosters.students(name)[login].run
        assert self.courier.wait(run, timeout=120)

    def user(self, name: str, role: Role = Role.MEMBER, quota: Quota = PLENTY) -> User:
        return self.people.add(name, "no hash", role=role, quota=quota)

    def states(self, name: str = "promo") -> dict[str, str]:
        return {key: each.standing.value for key, each in self.rosters.students(name).items()}

    def close(self) -> None:
        assert self.courier.stop(grace=120.0)
        self.database.close()


@contextlib.contextmanager
def plane(url: str, folder: Path, **how) -> Iterator[Plane]:
    made = Plane(url, folder, **how)
    with contextlib.closing(made):
        yield made
