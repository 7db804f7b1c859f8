"""Sandbox machines of this computer that join the fleet through the real agent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.config.compose import compose
from essaim.model.errors import SetupError
from essaim.model.fleet import NodeState
from essaim.model.machines import Listens
from essaim.usecases.credentials import digest, new_token
from essaim.usecases.machines import targets
from essaim.usecases.stacks import apply, follow, give_way, make_down_plan, stored_stack

if TYPE_CHECKING:
    import socket

    from essaim.config.compose import Composed
    from essaim.model.fleet import Node
    from essaim.model.stacks import Machine, Stack
    from essaim.remote.ssh import Target
    from essaim.usecases.services import Services

LAB = Path(__file__).resolve().parents[1] / "library" / "labs" / "fleet"
#: Ports on the stack's network where its machines find the API and the gateway.
API_PORT, GATEWAY_PORT = 8080, 2222
#: Seconds one command may take on a machine.
COMMAND_WITHIN = 120.0
#: Machines that are told to join at the same time.
WIDTH = 8
#: Seconds an enrolment token lasts.
TOKEN_LASTS = 600
AGENT = "/usr/local/lib/essaim/agent.py"
LOG = "/var/log/essaim-agent.log"
#: Exits 0 when an agent runs: beside this shell's own words, the command line of the real one.
RUNS = f"pgrep -u essaim -f '^python3 -I {AGENT} run' >/dev/null"
#: Root starts it and the agent becomes its own account; it outlives this SSH session.
START = f"setsid python3 -I {AGENT} run >>{LOG} 2>&1 </dev/null &"


class SandboxFleet:
    """The machines of the stack `name`, which are the nodes of the site with the same name.

    `agent` is the program that machines join with.
    """

    def __init__(self, services: Services, name: str, agent: Callable[[], str]) -> None:
        self._services, self.name, self._agent = services, name, agent

    def compose(self, count: int) -> Composed:
        """Describe the stack with so many machines."""
        return compose(str(LAB), [f"name={self.name}", f"nodes={count}"])

    @property
    def made(self) -> bool:
        """Whether the stack is there, perhaps from an earlier process."""
        return self._services.stacks.get_stack(self.name) is not None

    @property
    def stack(self) -> Stack:
        """The stack as last applied."""
        return stored_stack(self._services, self.name)[0]

    def listen(self) -> tuple[socket.socket, socket.socket]:
        """Listen on the machines' network: for the API, and for the gateway."""
        driver = self._services.driver(self.stack.site)
        if not isinstance(driver, Listens):
            raise TypeError(driver)
        return driver.listen(self.name, API_PORT), driver.listen(self.name, GATEWAY_PORT)

    @property
    def address(self) -> str:
        """Where the machines find whoever listens on their network."""
        return str(ip_network(self.stack.network.cidr)[1])

    def join(self) -> None:
        """Let every machine join whose agent does not run; the same machine is the same node.

        SetupError with the agent's own words when one cannot.
        """
        machines = self.stack.machines
        token = new_token("enrol")
        self._services.fleet.enrol(
            digest(token), uses=len(machines), seconds=TOKEN_LASTS, site=self.name, who=self.name
        )

        server = f"http://{self.address}:{API_PORT}"

        def one(target: Target) -> None:
            self._join_one(target, server, token)

        with ThreadPoolExecutor(WIDTH) as pool:
            list(pool.map(one, targets(self._services, self.stack, machines)))

    def _join_one(self, target: Target, server: str, token: str) -> None:
        run = self._services.remote.run
        if run(target, RUNS, within=COMMAND_WITHIN).exit_code == 0:
            return
        source = self._agent().encode()
        run(target, "cat >/root/agent.py", stdin=source, within=COMMAND_WITHIN)
        words = f"join --server {server} --insecure-http --tunnel --no-run"
        joined = run(
            target,
            f"python3 -I /root/agent.py {words}",
            env={"ESSAIM_TOKEN": token},
            within=COMMAND_WITHIN,
        )
        if joined.exit_code:
            said = joined.output.strip().rpartition("\n")[2]
            raise SetupError(f"{target.name} did not join: {said}")
        self.start_agent(target)

    def start_agent(self, target: Target) -> None:
        """Start the agent of a machine that has joined before."""
        self._services.remote.run(target, START, within=COMMAND_WITHIN)

    def nodes(self) -> list[Node]:
        """List the nodes of this fleet, those whose machine is gone too."""
        return [node for node in self._services.fleet.list() if node.site == self.name]

    def machine_of(self, node: Node) -> Machine | None:
        """Find the machine that a node is, by its host key."""
        for machine in self.stack.machines:
            key = self._services.keyring.host_public_key(machine.name)
            if key.split()[:2] == node.host_key.split()[:2]:
                return machine
        return None

    def joined(self, since: int = 0) -> list[Node]:
        """List the nodes whose machine is there, that serve, and were heard after `since`."""
        serving = (NodeState.READY, NodeState.HELD)
        return [
            node
            for node in self.nodes()
            if node.state in serving and node.beat_at > since and self.machine_of(node)
        ]

    def missing(self) -> list[Node]:
        """List the nodes whose machine is gone."""
        return [node for node in self.nodes() if self.machine_of(node) is None]

    def leaving(self, count: int) -> list[Node]:
        """List the nodes that go when only so many machines stay."""
        stay = {str(machine.name) for machine in self.compose(count).stack.machines}
        found = [(node, self.machine_of(node)) for node in self.nodes()]
        return [node for node, machine in found if machine and str(machine.name) not in stay]

    def take_down(self) -> bool:
        """Remove the machines, their disks and their network; says whether all of it is gone."""
        if self.made:
            services = self._services
            give_way(services, self.name)
            follow(services, apply(services, make_down_plan(services, self.name)))
        return not self.made
