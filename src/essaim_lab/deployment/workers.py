"""The machines of a lab, as containers that join the deployment: more and fewer while it runs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from essaim_lab.deployment.cluster import Cluster

#: How agents inside call the front door.
NAME = "lab.test"
LABEL = "org.essaim.lab=machine"
#: The network that machines are in, and where the first one is.
NETWORK, FIRST = "essaim_front", "10.78.0.11"
#: As many as the network has addresses for.
MOST = 240
JOIN_WITHIN = 300.0
NUMBERED = re.compile(r"essaim_pc-(\d+)_1")

FETCH = """
import ssl, urllib.request
trust = ssl.create_default_context(cafile="/root/ca.crt")
text = urllib.request.urlopen("https://%s/agent.py", context=trust).read()
open("/root/agent.py", "wb").write(text)
"""
#: Run where the control plane runs: an enrolment for so many machines.
ENROL = """
import sys
from essaim.bootstrap import App
from essaim.usecases.credentials import digest, new_token
app, token = App(kind="check"), new_token("enrol")
app.fleet.enrol(digest(token), uses=int(sys.argv[1]), seconds=3600, who="make up-cluster")
print(token)
app.close()
"""
#: Likewise: the nodes of these names, and how they are.
NODES = """
import json
from essaim.bootstrap import App
app = App(kind="check")
print(json.dumps([[node.name, str(node.state)] for node in app.fleet.list()]))
app.close()
"""
#: Likewise: take nodes out of the fleet.  Leases move to others, with their files, or stop it.
REMOVE = """
import sys
from essaim.bootstrap import App
from essaim.model.errors import EssaimError
from essaim.usecases.node_removal import NodeRemoval
app = App(kind="check")
removal = NodeRemoval(app, [each for each in app.fleet.list() if each.name in sys.argv[1:]], "lab")
removal.drain()
move, end = removal.split()
try:
    if end:
        names = ", ".join(lease.id for lease in removal.leases(end))
        sys.exit(f"no other machine is free for {names}: release them first")
    removal.move(move)
    print(*[lease.id for lease in removal.leases()])
    removal.finish("its machine was removed")
except (EssaimError, SystemExit) as error:
    removal.drain(on=False)
    sys.exit(str(error))
finally:
    app.close()
"""


class Workers:
    """The machines `pc-1`, `pc-2` … of a deployment."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def names(self) -> list[str]:
        """Name the machines there are, the first one first."""
        words = ("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}")
        found = NUMBERED.findall(self._cluster.docker.run(*words))
        return [f"pc-{number}" for number in sorted(map(int, found))]

    def resize(self, count: int) -> None:
        """Make it so many machines that have joined; leases on those that go move to others."""
        if not 0 <= count <= MOST:
            raise SetupError(f"WORKERS={count}: between 0 and {MOST}")
        self.launch(count)
        there = self.names()
        if there[count:]:
            self._remove(there[count:])
        known = {name for name, _state in self.nodes()}
        self.join([name for name in there[:count] if name not in known])
        self._wait(there[:count])

    def launch(self, count: int) -> None:
        """Start containers until there are so many machines; they have not joined anything."""
        there = self.names()
        wanted = [f"pc-{number}" for number in range(1, count + 1)]
        for name in wanted:
            if name not in there:
                self._run(name)
            else:
                self._cluster.docker.run("start", self._cluster.machine(name))

    def join(self, names: Sequence[str]) -> None:
        """Let machines join, as an administrator would."""
        if not names:
            return
        self._cluster.say(f"{len(names)} machine{'s' * (len(names) > 1)} join")
        token = self._python(ENROL, str(len(names))).strip()
        for name in names:
            self.join_one(name, token)

    def join_one(self, name: str, token: str) -> None:
        """Fetch the agent on a machine, and run it with the token."""
        cluster, machine = self._cluster, self._cluster.machine(name)
        cluster.docker.run("cp", str(cluster.certificate), f"{machine}:/root/ca.crt")
        cluster.inside(machine, "python3", "-c", FETCH % NAME)
        words = ["python3", "/root/agent.py", "join", "--server", f"https://{NAME}"]
        words += ["--ca", "/root/ca.crt", "--no-run"]
        cluster.inside(machine, *words, env={"ESSAIM_TOKEN": token})

    def nodes(self) -> list[tuple[str, str]]:
        """List the nodes of the fleet: names and states."""
        return [(name, state) for name, state in json.loads(self._python(NODES))]

    def _remove(self, names: Sequence[str]) -> None:
        self._cluster.say(f"{len(names)} machine{'s' * (len(names) > 1)} go; their leases move")
        self._python(REMOVE, *names)
        for name in names:
            self._cluster.docker.run("rm", "--force", "--volumes", self._cluster.machine(name))

    def _run(self, name: str) -> None:
        network, _, first = FIRST.rpartition(".")
        address = f"{network}.{int(first) - 1 + int(name.removeprefix('pc-'))}"
        # As in compose.yaml.  The address stays the same when the container is started again.
        self._cluster.docker.run(
            "run", "--detach", "--name", self._cluster.machine(name), "--hostname", name,
            "--label", LABEL, "--network", NETWORK, "--ip", address, "--stop-signal", "SIGKILL",
            "--cap-add", "SYS_ADMIN", "--security-opt", "apparmor:unconfined",
            self._cluster.settings["MACHINE_IMAGE"],
        )  # fmt: skip

    def _wait(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + JOIN_WITHIN
        while missing := set(names) - {
            n for n, state in self.nodes() if state in ("ready", "held")
        }:
            if time.monotonic() > deadline:
                wrong = ", ".join(sorted(missing))
                raise SetupError(f"not ready after {JOIN_WITHIN:g} s: {wrong}", hint="docker logs")
            time.sleep(0.5)

    def _python(self, script: str, *words: str) -> str:
        (api, *_more) = self._cluster.containers("api")
        return self._cluster.inside(api, "python", "-c", script, *words)
