"""A project on a site of files for the generic suite, and a case for every workflow.

What is real (sandbox machines, BIND, Ansible) is tried end to end; these trials end hundreds of
times half way.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import filed
from essaim.config.plays import Play, play_to_json
from essaim.config.serial import machine_to_json, stack_to_json
from essaim.engine.workflow import Workflow
from essaim.model.errors import NotYetError
from essaim.model.names import MachineName
from essaim.model.plans import Plan
from essaim.model.school import Host
from essaim.model.stacks import Image, Machine, Network, Site, Size, Stack
from essaim.plan.serial import plan_to_json
from essaim.remote import playing
from essaim.remote.keyring import Keyring
from essaim.store.database import open_database
from essaim.store.logs import CommandLogs
from essaim.store.migrate import migrate
from essaim.store.rosters import Rosters
from essaim.store.stacks import Stacks
from essaim.workflows.playing import play
from essaim.workflows.schooling import School
from essaim.workflows.table import WORKFLOWS
from essaim.workflows.tools import Tools
from workflows.generic import Case

SITE = Site(name="cri", driver="proxmox")
IMAGE = Image(name="debian", builder="template", digest="d" * 64)
NAME = MachineName("profan", "cloud")


class Remote(filed.Remote):
    """Every machine answers at once."""

    def reach(self, _target, *, within: float) -> None:
        assert within > 0


class World:
    """A project of one machine in a folder, and what can be seen of it."""

    def __init__(self, place: Path, awx: dict[str, Any] | None = None) -> None:
        self.place = place
        site = dataclasses.replace(SITE, settings={"awx": awx} if awx else {})
        self.site = filed.Site(place / "site")
        self.database = open_database(f"sqlite:///{_store(place)}")
        self.stacks = Stacks(self.database)
        self.machine = self.wanted("cloud.example.org", "10.7.0.10")
        wanted = Play(
            group="profan",
            playbook=place / "site.yml",
            extravars={"port": 22},
            executor="awx" if awx else "runner",
        )
        self.stack = Stack(
            name=NAME.stack,
            site=site,
            network=Network(cidr="10.7.0.0/24"),
            machines=(self.machine,),
            images={"debian": IMAGE},
            roles={},
            vars={"project": {"play": play_to_json(wanted)}},
        )
        self.tools = Tools(
            driver=lambda _site: self.site.driver,
            images=filed.Images(),
            remote=Remote(),
            keyring=Keyring(place / "keys"),
            stacks=self.stacks,
            logs=CommandLogs(self.database),
            school=School(
                rosters=Rosters(self.database),
                journal=None,
                names=lambda _site: self.site.names,
                addresses=lambda _site: None,
                desktops=lambda _site: None,
            ),
        )

    def wanted(self, host: str, address: str) -> Machine:
        labels = {"host": host, "ip": f"{address}/24"}
        size = Size(cores=1, memory=128)
        return Machine(
            name=NAME,
            group="ct",
            index=1,
            address=address,
            image="debian",
            size=size,
            labels=labels,
        )

    def once(self, prepare: Callable[[World], None] | None = None) -> World:
        done = self.place / "prepared"
        if not done.exists():
            plan = Plan(stack=NAME.stack, changes=(), world="", wanted="")
            body = {"plan": plan_to_json(plan), "stack": stack_to_json(self.stack), "lab": "."}
            self.stacks.put_plan("plan", NAME.stack, body)
            if prepare:
                prepare(self)
            done.touch()
        return self

    def made(self, machine: Machine) -> None:
        """A machine as it was made earlier."""
        for _ in range(2):
            try:
                self.site.driver.create(machine, self.stack.network, IMAGE, None)
            except NotYetError:
                continue
        self.site.driver.start(NAME)
        self.site.names.name(Host(name=machine.labels["host"], address=machine.address))
        self.stacks.put_machine(str(NAME), NAME.stack, machine_to_json(machine))

    def seen(self) -> object:
        played = self.place / "played"
        return {
            **self.site.seen(),
            "records": self.stacks.machines(NAME.stack),
            "applied": sorted(self.stacks.applied(NAME.stack)),
            "played": json.loads(played.read_text()) if played.exists() else None,
        }

    def case(self, workflow: Workflow) -> Case:
        its = {"plan": "plan", "site": SITE.name, "machine": str(NAME), "digest": "a:b:c:d"}
        return Case(
            workflow=workflow,
            tools=self.tools,
            seen=self.seen,
            input=its,
            slots=lambda _name: 2,
            clean=self.database.close,
        )


def _store(place: Path) -> Path:
    """The trial's own database; to make the first one takes longer than a whole trial."""
    own, first = place / "tools.db", place.parent / "first.db"
    if not own.exists():
        if not first.exists():
            database = open_database(f"sqlite:///{first}")
            migrate(database)
            database.close()
        shutil.copy(first, own)
    return own


def host_case(place: Path) -> Case:
    return World(place).once().case(WORKFLOWS["host"])


def rehost_case(place: Path) -> Case:
    """It moves to another address, and has another name from then on."""
    world = World(place)
    world.once(lambda world: world.made(world.wanted("old.example.org", "10.7.0.9")))
    return world.case(WORKFLOWS["rehost"])


def name_case(place: Path) -> Case:
    world = World(place)
    world.once(lambda world: world.made(world.wanted("old.example.org", "10.7.0.10")))
    return world.case(WORKFLOWS["name"])


def unhost_case(place: Path) -> Case:
    """It was made under a name that the project does not know any more."""
    world = World(place)
    world.once(lambda world: world.made(world.wanted("old.example.org", "10.7.0.10")))
    return world.case(WORKFLOWS["unhost"])


def play_case(place: Path) -> Case:
    def quick(wanted, players, extravars, **_rest):
        told = [wanted.group, [player.name for player in players], extravars]
        (place / "played").write_text(json.dumps(told))

    def play_quickly(context):
        with mock.patch.object(playing, "play", quick):  # Ansible itself takes seconds
            return play(context)

    world = World(place)
    world.once(lambda world: world.made(world.machine))
    flow = WORKFLOWS["play"]
    steps = [dataclasses.replace(s, do=play_quickly) if s.do is play else s for s in flow.steps]
    return world.case(dataclasses.replace(flow, steps=tuple(steps)))


PROJECTS = {
    "host": host_case,
    "rehost": rehost_case,
    "name": name_case,
    "unhost": unhost_case,
    "play": play_case,
}
