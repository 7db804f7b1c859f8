"""A roster on a site of files for the generic suite, and a case per workflow.

Beside the folders of the trials lies `rig.json`, which says where the database is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import filed
from essaim.config.rosters import Roster, addresses, roster_to_json
from essaim.model.errors import NotYetError
from essaim.model.names import MachineName
from essaim.model.plans import Action, Change
from essaim.model.school import Person
from essaim.model.stacks import Image, Site, Size
from essaim.plan.rosters import Access, Standing, Student
from essaim.store.database import open_database
from essaim.store.journal import SqlJournal
from essaim.store.rosters import Rosters
from essaim.store.stacks import Stacks
from essaim.usecases import rosters as use
from essaim.usecases.stacks import store
from essaim.workflows.schooling import School
from essaim.workflows.student_account import wanted_account
from essaim.workflows.table import WORKFLOWS
from essaim.workflows.tools import Tools
from workflows.generic import Case

KEY = filed.HOST_KEY  #: any key
PEOPLE = (Person(login="alice", name="Alice", key=KEY), Person(login="bob", name="Bob"))
IMAGE = Image(name="gui", builder="template", digest="d" * 64)


class World:
    """A roster named after its trial, and all that can be seen of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        rig = json.loads((place.parent / "rig.json").read_text())
        self.database = open_database(rig["url"])
        self.rosters = Rosters(self.database)
        self.stacks = Stacks(self.database)
        self.site = filed.Site(place / "site")
        # A site of its own for each trial, so that each begins with the same address.
        self.roster = Roster(
            name=place.name,
            site=Site(name=f"site-{place.name}", driver="proxmox"),
            image=IMAGE,
            size=Size(cores=1, memory=128),
            cidr="10.7.0.0/24",
            first="10.7.0.10",
            last="10.7.0.250",
            domain="school.example.org",
            prefix="vm-",
            protocol="rdp",
            port=3389,
        )
        journal = SqlJournal(self.database)
        self.tools = Tools(
            driver=lambda _site: self.site.driver,
            images=filed.Images(),
            remote=filed.Remote(),
            keyring=filed.Keyring(),
            stacks=self.stacks,
            logs=None,
            school=School(
                rosters=self.rosters,
                journal=journal,
                names=lambda _site: self.site.names,
                addresses=lambda _site: self.site.addresses,
                desktops=lambda _site: self.site.desktops,
            ),
        )
        self.journal = journal

    def once(self, prepare: Callable[[World], None]) -> World:
        done = self.place / "prepared"
        if not done.exists():
            self.rosters.put(self.roster.name, roster_to_json(self.roster))
            prepare(self)
            done.touch()
        return self

    def enrol(self, *logins: str) -> None:
        coming = [
            Student(roster=self.roster.name, person=person, machine=self.machine(person.login))
            for person in PEOPLE
            if person.login in logins
        ]
        self.rosters.enrol(self.roster.site.name, coming, addresses(self.roster))

    def made(self, *logins: str) -> None:
        """Students who have worked on their machines."""
        self.enrol(*logins)
        for student in self.rosters.students(self.roster.name).values():
            machine = use.machine(self.roster, student.person, student.address)
            network, driver = None, self.site.driver
            for _ in range(2):
                try:
                    driver.create(machine, network, IMAGE, None)
                except NotYetError:
                    continue
            driver.start(machine.name)
            account = wanted_account(machine, student.key, [filed.Keyring().user_public_key()])
            driver.execute(machine.name, account.command)
            access = Access(digest=account.digest, key=student.key, host_key=filed.HOST_KEY)
            self.rosters.access.put(student.machine, access)
            driver.write(student.machine, "worked on")
            driver.snapshot(machine.name, "before")
            driver.write(student.machine, "thesis")
            host = use.planning.host_of(machine, driver.card(machine.name))
            self.site.names.name(host)
            self.site.addresses.admit(host)
            self.site.desktops.publish(use.planning.desktop_of(machine))
            self.rosters.stand(student.machine, Standing.READY)

    def plan(self, verb: str, *logins: str) -> None:
        everybody = list(self.rosters.students(self.roster.name).values())
        changes = [
            Change(
                key=MachineName.parse(self.machine(login)).machine,
                action=Action.CHANGE,
                verb=verb,
                machine=self.machine(login),
            )
            for login in logins
        ]
        stack = use.stack_of(self.roster, everybody)
        stored = store(self, stack, self.roster.lab, changes)
        (self.place / "plan").write_text(stored.id)

    def machine(self, login: str) -> str:
        return f"{self.roster.name}/{login}"

    def seen(self) -> object:
        students = self.rosters.students(self.roster.name).values()
        name = self.roster.name
        text = json.dumps(
            {
                **self.site.seen(),
                "students": [
                    [s.login, s.address, s.standing.value, bool(s.made), s.error] for s in students
                ],
                "access": [asdict(s.access) for s in students],
                "stack": name in self.stacks.list_stacks(),
            }
        )
        return json.loads(text.replace(name, "promo"))

    def clean(self) -> None:
        self.database.close()

    def case(self, workflow: str, undone: object = None, **more: object) -> Case:
        plan = (self.place / "plan").read_text()
        site, machine = self.roster.site.name, self.machine("alice")
        return Case(
            workflow=WORKFLOWS[workflow],
            others=tuple(flow for name, flow in WORKFLOWS.items() if name != workflow),
            tools=self.tools,
            seen=self.seen,
            input={"plan": plan, "site": site, "machine": machine, "label": "before", **more},
            slots=lambda _name: 2,
            journal=self.journal,
            undone=undone,
            clean=self.clean,
        )


def enrol_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.enrol("alice")
        world.plan("enrol", "alice")

    def undone(seen) -> bool:
        """Everything is free again, the address too; only why it failed is kept."""
        ((login, address, standing, made, error),) = seen["students"]
        nothing = not any(seen[part] for part in ("machines", "names", "addresses", "desktops"))
        told = "made to fail" in error
        return (
            nothing and (login, address, standing, made) == ("alice", "", "failed", False) and told
        )

    return World(place).once(prepare).case("enrol", undone)


def outrun_case(place: Path) -> Case:
    """Others have all addresses but one by the time the planned one is to be used."""
    stranger = "02:ff:00:00:00:01"
    theirs = {f"10.7.0.{number}": stranger for number in range(10, 251) if number != 11}

    def prepare(world: World) -> None:
        world.enrol("alice")
        world.plan("enrol", "alice")
        with world.site.addresses.changed() as addresses_:
            addresses_.update(theirs)

    def undone(seen) -> bool:
        ((_login, address, standing, _made, error),) = seen["students"]
        nothing = not any(seen[part] for part in ("machines", "names", "desktops"))
        told = (address, standing) == ("", "failed") and "made to fail" in error
        return nothing and told and seen["addresses"] == theirs

    return World(place).once(prepare).case("enrol", undone)


def mend_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.made("alice")
        world.rosters.stand(world.machine("alice"), Standing.RETIRED)
        world.site.driver.stop(MachineName.parse(world.machine("alice")))
        with world.site.names.changed() as names:
            names.clear()
        world.enrol("alice")
        world.plan("mend", "alice")

    def undone(seen) -> bool:
        """The student's work is there, whatever failed."""
        ((_login, address, standing, made, _error),) = seen["students"]
        kept = seen["machines"]["promo/alice"]["disk"] == "thesis"
        return kept and made and bool(address) and standing == "failed"

    return World(place).once(prepare).case("mend", undone)


def made_case(place: Path, workflow: str, **more: object) -> Case:
    def prepare(world: World) -> None:
        world.made("alice")
        world.plan(workflow, "alice")

    return World(place).once(prepare).case(workflow, **more)


def reset_case(place: Path) -> Case:
    return made_case(place, "reset")


def withdraw_case(place: Path) -> Case:
    return made_case(place, "withdraw")


def remove_case(place: Path) -> Case:
    return made_case(place, "remove")


def delete_case(place: Path) -> Case:
    return made_case(place, "remove", stays=True)


def may_ask_again(*disks: str) -> Callable[[Any], bool]:
    """Judge what a verb that failed has left: nothing that keeps anybody from asking again."""

    def undone(seen) -> bool:
        ((_login, address, standing, made, error),) = seen["students"]
        known = all(seen[part] for part in ("names", "addresses", "desktops"))
        whole = seen["machines"]["promo/alice"]["disk"] in disks
        return known and whole and made and bool(address) and (standing, error) == ("ready", "")

    return undone


def wake_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.made("alice")
        world.site.driver.stop(MachineName.parse(world.machine("alice")))
        world.plan("wake", "alice")

    return World(place).once(prepare).case("wake", may_ask_again("thesis"))


def rekey_case(place: Path) -> Case:
    """A machine that runs is given the key that came meanwhile."""

    def prepare(world: World) -> None:
        world.made("alice")
        world.rosters.access.put_own_key(world.roster.name, "alice", KEY.replace("2k", "2l"))
        world.plan("wake", "alice")

    return World(place).once(prepare).case("wake", may_ask_again("thesis"))


def halt_case(place: Path) -> Case:
    return made_case(place, "halt", undone=may_ask_again("thesis"))


def keep_case(place: Path) -> Case:
    return made_case(place, "keep", undone=may_ask_again("thesis"), label="now")


def revert_case(place: Path) -> Case:
    return made_case(place, "revert", undone=may_ask_again("thesis", "worked on"))


def unkeep_case(place: Path) -> Case:
    return made_case(place, "unkeep", undone=may_ask_again("thesis"))


def roster_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.enrol("alice", "bob")
        world.plan("enrol", "alice", "bob")

    return World(place).once(prepare).case("roster")


def emptied_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.made("alice", "bob")
        world.plan("remove", "alice", "bob")

    return World(place).once(prepare).case("roster")


SCHOOL = {
    "enrol": enrol_case,
    "enrol, outrun": outrun_case,
    "mend": mend_case,
    "reset": reset_case,
    "withdraw": withdraw_case,
    "remove": remove_case,
    "remove, by the student": delete_case,
    "wake": wake_case,
    "wake, another key": rekey_case,
    "halt": halt_case,
    "keep": keep_case,
    "revert": revert_case,
    "unkeep": unkeep_case,
    "roster": roster_case,
    "roster, emptied": emptied_case,
}
