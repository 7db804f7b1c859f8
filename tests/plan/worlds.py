"""Stacks and worlds to plan with, and a world that obeys a plan."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from essaim.model.machines import Observed, Power
from essaim.model.names import MachineName
from essaim.model.plans import Applied, Change, World
from essaim.model.roles import Provide, Role
from essaim.model.stacks import Image, Machine, Network, Site, Size, Stack

ROLES = {
    "base": Role(name="base", path=Path("base"), digest="b" * 64),
    "controller": Role(
        name="controller",
        path=Path("controller"),
        digest="c" * 64,
        members={"nodes": "node"},
        provides={"key": Provide(command="cat /key", secret=True)},
    ),
    "node": Role(name="node", path=Path("node"), digest="d" * 64, needs={"key": "controller"}),
}


def cluster(nodes: int, *, name: str = "lab", **changes: object) -> Stack:
    """A controller and its nodes."""
    size = Size(cores=1, memory=512)
    machines = [
        Machine(
            name=MachineName(name, "controller"),
            group="controller",
            index=1,
            address="10.77.0.10",
            image="debian",
            size=size,
            roles=("base", "controller"),
        )
    ]
    machines += [
        Machine(
            name=MachineName(name, f"nodes-{k}"),
            group="nodes",
            index=k,
            address=f"10.77.{(10 + k) // 250}.{(10 + k) % 250}",
            image="debian",
            size=size,
            roles=("base", "node"),
        )
        for k in range(1, nodes + 1)
    ]
    settings: dict[str, object] = {
        "name": name,
        "site": Site(name="local", driver="sandbox"),
        "network": Network(cidr="10.77.0.0/16"),
        "machines": tuple(machines),
        "images": {"debian": Image(name="debian", builder="debian", digest="i" * 64)},
        "roles": ROLES,
    }
    return Stack(**{**settings, **changes})


def obey(stack: Stack, world: World, changes: tuple[Change, ...]) -> World:  # noqa: C901 - one case a verb
    """The world after every change was carried out, in the order given."""
    machines, applied, images = dict(world.machines), dict(world.applied), set(world.images)
    network, internet = world.network, world.internet
    wanted = {str(machine.name): machine for machine in stack.machines}
    for change in changes:
        match change.verb:
            case "open":
                network, internet = stack.network.cidr, stack.network.internet
            case "reopen":
                network, machines, applied = stack.network.cidr, {}, {}
                internet = stack.network.internet
            case "close":
                network, internet, machines, applied = None, False, {}, {}
            case "build":
                images.add(stack.images[change.key.removeprefix("image-")].digest)
            case "retire" | "destroy":
                machines.pop(change.machine)
                applied = {at: a for at, a in applied.items() if at[0] != change.machine}
            case "raise" | "rebuild" | "start":
                machine = wanted[change.machine]
                image = stack.images[machine.image]
                assert image.digest in images
                if change.verb != "start":
                    applied = {at: a for at, a in applied.items() if at[0] != change.machine}
                before = machines.get(change.machine)
                machines[change.machine] = Observed(
                    name=machine.name,
                    power=Power.ON,
                    address=machine.address,
                    image=image.digest,
                    boot=f"{before.boot if before else ''}+",
                    shared=before.shared if before and change.verb == "start" else machine.shared,
                )
            case "configure":
                assert machines[change.machine].power is Power.ON
                applied[change.machine, change.role] = Applied(
                    machine=change.machine,
                    role=change.role,
                    digest=change.digest,
                    boot=machines[change.machine].boot,
                )
            case other:
                assert other == "gate"
    return World(
        network=network,
        internet=internet,
        images=frozenset(images),
        machines=machines,
        applied=applied,
    )


@st.composite
def worlds(draw: st.DrawFn, *, name: str = "lab", most: int = 6) -> World:
    """Any state a half-finished, half-broken, half-foreign lab can be in."""
    nodes = draw(st.integers(0, most))
    stack = cluster(nodes, name=name)
    machines, applied = {}, {}
    for machine in stack.machines:
        if not draw(st.booleans()):
            continue
        boot = draw(st.sampled_from(["1", "2"]))
        machines[str(machine.name)] = Observed(
            name=machine.name,
            power=draw(st.sampled_from(Power)),
            address=draw(st.sampled_from([machine.address, "10.77.9.9"])),
            image=draw(st.sampled_from(["i" * 64, "old"])),
            boot=boot,
            shared=draw(st.sampled_from([(), ("/home",)])),
        )
        for role in draw(st.sets(st.sampled_from([*machine.roles, "gone"]))):
            applied[str(machine.name), role] = Applied(
                machine=str(machine.name),
                role=role,
                digest=draw(st.sampled_from(["a:b:c:d", "x:y:z:w"])),
                boot=draw(st.sampled_from([boot, "other"])),
            )
    network = draw(st.sampled_from([None, "10.77.0.0/16", "10.1.0.0/24"]))
    if network is None:
        machines, applied = {}, {}
    images = draw(st.sampled_from([frozenset(), frozenset({"i" * 64})]))
    internet = network is not None and draw(st.booleans())
    return World(
        network=network, internet=internet, images=images, machines=machines, applied=applied
    )
