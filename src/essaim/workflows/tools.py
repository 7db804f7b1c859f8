"""What steps act through, and how they find the plan they belong to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from essaim.config.serial import stack_from_json
from essaim.model.errors import StuckError
from essaim.model.machines import Dials, Driver
from essaim.model.netmap import translate
from essaim.model.plans import Plan
from essaim.model.runs import Run
from essaim.model.stacks import Machine, Site, Stack
from essaim.plan.serial import plan_from_json
from essaim.remote.ssh import Target

if TYPE_CHECKING:
    from essaim.engine.workflow import Context
    from essaim.images.cache import Images
    from essaim.remote.keyring import Keyring
    from essaim.remote.render import Given
    from essaim.remote.ssh import Remote
    from essaim.store.logs import CommandLogs
    from essaim.store.stacks import Stacks
    from essaim.workflows.lending import Lending
    from essaim.workflows.schooling import School


@dataclass(frozen=True, slots=True)
class Work:
    """A stored plan and the stack it was made for, indexed for its steps."""

    stack: Stack
    plan: Plan
    lab: Path
    machines: Mapping[str, Machine]

    def carrier(self, role: str) -> Machine | None:
        """The machine whose values count for a role: the first that carries it."""
        return next((machine for machine in self.stack.machines if role in machine.roles), None)


class Tools:
    """The services of one control plane.  One instance serves every thread of an engine."""

    def __init__(
        self,
        *,
        driver: Callable[[Site], Driver],
        images: Images,
        remote: Remote,
        keyring: Keyring,
        stacks: Stacks,
        logs: CommandLogs,
        lending: Lending | None = None,
        school: School | None = None,
    ) -> None:
        self.driver = driver
        self.images = images
        self.remote = remote
        self.keyring = keyring
        self.stacks = stacks
        self.logs = logs
        self.lending = lending
        self.school = school
        # Plans never change once stored, and every run of an apply asks for the same one.
        self.work = functools.lru_cache(maxsize=8)(self._work)
        self._given: dict[tuple[Any, ...], Given] = {}

    def _work(self, plan_id: str) -> Work:
        body = self.stacks.get_plan(plan_id)
        if body is None:
            raise StuckError(
                f"plan {plan_id} is no longer in the store",
                hint="abandon this run and plan again: essaim runs abandon",
            )
        stack = stack_from_json(body["stack"])
        plan = plan_from_json(body["plan"])
        return Work(
            stack=stack,
            plan=plan,
            lab=Path(body["lab"]),
            machines={str(machine.name): machine for machine in stack.machines},
        )

    def given(self, key: tuple[Any, ...], read: Callable[[], Given]) -> Given:
        """A value provided by a role: read once, kept in memory only, never in the journal."""
        if key not in self._given:
            self._given[key] = read()
        return self._given[key]

    def proxy(self, site: Site) -> Callable[[Target], list[str]] | None:
        """How OpenSSH reaches machines it cannot connect to by itself."""
        driver = self.driver(site)
        if not isinstance(driver, Dials):
            return None
        return lambda target: driver.proxy_command(target.name)

    def target(self, site: Site, machine: Machine) -> Target:
        """How to reach a machine over SSH."""
        return machine_target(site, self.driver(site), self.keyring, machine)


def machine_target(site: Site, driver: Driver, keyring: Keyring, machine: Machine) -> Target:
    """How to reach a machine over SSH, through its driver where the network demands it."""
    dial = functools.partial(driver.dial, machine.name, 22) if isinstance(driver, Dials) else None
    return Target(
        name=machine.name,
        address=address_from_here(site, machine),
        host_key=keyring.host_public_key(machine.name),
        dial=dial,
    )


def address_from_here(site: Site, machine: Machine) -> str:
    """Where this computer finds a machine."""
    return translate(machine.address, site.settings.get("netmap") or {})


def tools(context: Context) -> Tools:
    """The engine hands tools on without knowing them; here they get their type back."""
    return cast("Tools", context.tools)


def work(context: Context) -> Work:
    """The plan a run belongs to."""
    return tools(context).work(context.run.input["plan"])


def machine(context: Context) -> Machine:
    """The wanted machine a child run works on."""
    return work(context).machines[context.run.input["machine"]]


def site_slot(kind: str) -> Callable[[Run], str]:
    """Name a slot that all machines of a site share, such as `start:local`."""

    def slot(run: Run) -> str:
        site: Any = run.input["site"]
        return f"{kind}:{site}"

    return slot
