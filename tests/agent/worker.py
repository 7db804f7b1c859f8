"""A sandbox machine of image `worker` with the agent on it, for tests."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from essaim.agent import source
from essaim.config.images import find_image
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network, Size
from essaim.remote.keyring import Keyring
from essaim.remote.ssh import Remote, Result, Target
from testcache import images

NETWORK = Network(cidr="10.66.0.0/24")


@dataclass
class Worker:
    """One machine: root over SSH, and whoever else one asks for."""

    driver: Sandbox
    keyring: Keyring
    remote: Remote
    root: Target

    @property
    def service(self) -> Target:
        """The service account, under another name: a name has one connection."""
        return replace(self.root, name=MachineName(self.root.name.stack, "node"), user="essaim")

    def proxy(self, _target: Target) -> list[str]:
        return self.driver.proxy_command(self.root.name)

    def sh(self, script: str, *words: str, within: float = 120, ok: bool = True) -> Result:
        """Run a shell script as root; `words` are its arguments."""
        line = f"set -- {shlex.join(words)}\n{script}" if words else script
        result = self.remote.run(self.root, line, within=within)
        assert not ok or result.exit_code == 0, result.output
        return result

    def ssh(self, user: str, *command: str, key: Path | None = None) -> subprocess.CompletedProcess:
        """Log in with OpenSSH, as a client would."""
        known = self.keyring.known_hosts_file([self.root.name])
        options = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(known),
            "HostKeyAlias": f"{self.root.name.stack}.{self.root.name.machine}",
            "ProxyCommand": shlex.join(self.proxy(self.root)),
            "ProxyUseFdpass": "yes",
        }
        words = ["ssh", "-F", "/dev/null", "-i", str(key or self.keyring.user_key())]
        words += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return subprocess.run(
            [*words, f"{user}@worker", *command],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    def helper(self, verb: str, request: Any, data: bytes = b"") -> dict[str, Any]:
        """Call the helper as the control plane does."""
        body = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        words = ["sudo", "-n", "/usr/local/lib/essaim/helper", verb]
        result = self.remote.run(self.service, words, stdin=body + data, within=300)
        answer = json.loads(result.stdout)
        assert result.exit_code == (0 if answer["ok"] else 1), result.output
        return answer

    def put(self, path: str, body: bytes) -> None:
        self.remote.run(self.root, f"cat >{shlex.quote(path)}", stdin=body, within=60)

    def install(self, *options: str) -> None:
        self.put("/root/agent.py", source().encode())
        key = self.keyring.user_public_key()
        self.sh('python3 -I /root/agent.py install "$@"', "--key", key, *options)


def until(condition, within: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@contextlib.contextmanager
def worker(place: Path, name: str = "one") -> Iterator[Worker]:
    """Make a machine below a folder, and end it with everything in it."""
    image = find_image("worker", str(Path(__file__).parents[2]))
    images().build(image, lambda _text: None)
    driver = Sandbox(place / "sandbox", lambda wanted: images().ready(wanted))
    keyring = Keyring(place / "keys")
    remote = Remote(keyring)
    machine = Machine(
        name=MachineName("fleet", name),
        group="workers",
        index=1,
        address="10.66.0.10",
        image="worker",
        size=Size(cores=1, memory=512),
    )
    seed = Seed(
        hostname=name,
        host_key=keyring.host_key(machine.name),
        authorized_keys=(keyring.user_public_key(),),
    )
    try:
        driver.open_network("fleet", NETWORK)
        driver.create(machine, NETWORK, image, seed)
        driver.start(machine.name)
        root = Target(
            name=machine.name,
            address=machine.address,
            host_key=keyring.host_public_key(machine.name),
            dial=functools.partial(driver.dial, machine.name, 22),
        )
        remote.reach(root, within=60)
        yield Worker(driver, keyring, remote, root)
    finally:
        remote.close()
        driver.close_network("fleet")
