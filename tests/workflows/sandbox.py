"""A world of real sandbox machines for the generic suite, and a case for every workflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from essaim.config.serial import machine_to_json, stack_to_json
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.plans import Action, Change, Plan
from essaim.model.roles import Leave, Ready, Role, RoleFile, RoleStep
from essaim.model.stacks import Machine, Network, Site, Size, Stack
from essaim.plan.serial import plan_to_json
from essaim.remote.keyring import Keyring
from essaim.remote.ssh import Remote
from essaim.store.database import open_database
from essaim.store.logs import CommandLogs
from essaim.store.migrate import migrate
from essaim.store.stacks import Stacks
from essaim.workflows.table import WORKFLOWS
from essaim.workflows.tools import Tools
from testcache import base_image, images
from workflows.generic import Case

SITE = Site(name="local", driver="sandbox")
STACK = "trial"
NAMES = ("one", "two")


class World:
    """A stack of two machines in a folder, and what can be seen of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        image = base_image()
        self.machines = tuple(
            Machine(
                name=MachineName(STACK, name),
                group=name,
                index=1,
                address=f"10.7.0.{10 + number}",
                image="base",
                size=Size(cores=1, memory=128),
                roles=("mark",),
            )
            for number, name in enumerate(NAMES)
        )
        role = Role(
            name="mark",
            path=place,
            digest="m" * 64,
            files=(RoleFile(to="/root/mark", content="{{ machine.name }}\n"),),
            run=(RoleStep(name="once", do="echo once >> /root/once"),),
            ready=Ready(command="test -s /root/once", every=0.1),
            leave=(Leave(name="bye", on="mark", do="echo $WHO > /root/left", env={"WHO": "x"}),),
        )
        self.stack = Stack(
            name=STACK,
            site=SITE,
            network=Network(cidr="10.7.0.0/24"),
            machines=self.machines,
            images={"base": image},
            roles={"mark": role},
        )
        self.driver = Sandbox(place / "sandbox", self._rootfs)
        self.keyring = Keyring(place / "keys")
        self.remote = Remote(self.keyring)
        self.database = open_database(f"sqlite:///{place}/tools.db")
        migrate(self.database)
        self.stacks = Stacks(self.database)
        self.tools = Tools(
            driver=lambda _site: self.driver,
            images=images(),
            remote=self.remote,
            keyring=self.keyring,
            stacks=self.stacks,
            logs=CommandLogs(self.database),
        )

    def _rootfs(self, image):
        return images().ready(image)

    def once(self, prepare: Callable[[World], None]) -> None:
        """Bring the world to where the trial begins; not again in those who come later."""
        done = self.place / "prepared"
        if not done.exists():
            prepare(self)
            done.touch()

    def plan(self, changes: Sequence[Change]) -> None:
        plan = Plan(stack=STACK, changes=tuple(changes), world="", wanted="")
        body = {"plan": plan_to_json(plan), "stack": stack_to_json(self.stack), "lab": "."}
        self.stacks.put_plan("plan", STACK, body)

    def open(self) -> None:
        self.driver.open_network(STACK, self.stack.network)

    def create(self, machine: Machine) -> None:
        seed = Seed(
            hostname=machine.name.machine,
            host_key=self.keyring.host_key(machine.name),
            authorized_keys=(self.keyring.user_public_key(),),
        )
        self.stacks.put_machine(str(machine.name), STACK, machine_to_json(machine))
        self.driver.create(machine, self.stack.network, base_image(), seed)

    def start(self, machine: Machine) -> None:
        self.create(machine)
        self.driver.start(machine.name)
        self.remote.reach(self.tools.target(SITE, machine), within=60)

    def seen(self) -> object:
        network = self.driver.network(STACK)
        return {
            "network": network and network.cidr,
            "machines": sorted((str(m.name), m.power.value) for m in self.driver.observe(STACK)),
            "records": sorted(self.stacks.machines(STACK)),
            "applied": sorted(self.stacks.applied(STACK)),
            "stacks": self.stacks.list_stacks(),
            "marks": {
                name: path.read_text()
                for name in NAMES
                for path in (self.place / f"sandbox/{STACK}/machines/{name}/upper/root").glob(
                    "[mo]*"
                )
            },
        }

    def clean(self) -> None:
        self.remote.close()
        self.driver.close_network(STACK)
        self.database.close()

    def case(self, workflow: str, **its: str) -> Case:
        return Case(
            workflow=WORKFLOWS[workflow],
            others=tuple(flow for name, flow in WORKFLOWS.items() if name != workflow),
            tools=self.tools,
            seen=self.seen,
            input={"plan": "plan", "site": "local", "digest": "a:b:c:d", **its},
            slots=lambda _name: 2,
            clean=self.clean,
        )

    def on_first(self, workflow: str) -> Case:
        return self.case(workflow, machine="trial/one", role="mark", change="one")


def raise_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.open()
        world.plan([])

    world = World(place)
    world.once(prepare)
    return world.on_first("raise")


def start_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.open()
        world.plan([])
        world.create(world.machines[0])

    world = World(place)
    world.once(prepare)
    return world.on_first("start")


def running(place: Path, workflow: str) -> Case:
    def prepare(world: World) -> None:
        world.open()
        world.plan([])
        world.start(world.machines[0])

    world = World(place)
    world.once(prepare)
    return world.on_first(workflow)


def rebuild_case(place: Path) -> Case:
    return running(place, "rebuild")


def retire_case(place: Path) -> Case:
    return running(place, "retire")


def destroy_case(place: Path) -> Case:
    return running(place, "destroy")


def configure_case(place: Path) -> Case:
    return running(place, "configure")


def apply_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        raising = [
            Change(key=name, action=Action.ADD, verb="raise", machine=f"{STACK}/{name}")
            for name in NAMES
        ]
        roles = [
            Change(
                key=f"{name}.mark",
                action=Action.ADD,
                verb="configure",
                machine=f"{STACK}/{name}",
                role="mark",
                digest="a:b:c:d",
                waits=(name,),
            )
            for name in NAMES
        ]
        network = Change(key="network", action=Action.ADD, verb="open")
        world.plan([network, *raising, *roles])

    world = World(place)
    world.once(prepare)
    return world.case("apply")


def down_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.open()
        world.start(world.machines[0])
        world.stacks.put_stack(STACK, {"stack": stack_to_json(world.stack), "lab": "."})
        gone = Change(key="one", action=Action.REMOVE, verb="destroy", machine="trial/one")
        close = Change(key="network", action=Action.REMOVE, verb="close", waits=("one",))
        world.plan([gone, close])

    world = World(place)
    world.once(prepare)
    return world.case("apply")


MACHINES = {
    "raise": raise_case,
    "start": start_case,
    "rebuild": rebuild_case,
    "retire": retire_case,
    "destroy": destroy_case,
}
STACKS = {
    "configure": configure_case,
    "apply": apply_case,
    "apply, to take down": down_case,
}


def ready() -> None:
    """See that there is an image to make machines from."""
    images().build(base_image(), lambda _text: None)
