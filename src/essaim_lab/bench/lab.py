"""A fleet of sandbox machines that joined a control plane in this process, as in `essaim demo`."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import essaim
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from essaim.bootstrap import App
    from essaim.model.fleet import Node
    from essaim.model.names import MachineName
    from essaim.remote.ssh import Target

LAB = Path(essaim.__file__).parent / "library" / "labs" / "fleet"
STACK = "fleet"
API_PORT, GATEWAY_PORT = 8080, 2222
PATIENCE = 300.0
AT_ONCE = 8  #: machines that are joined at the same time


@contextmanager
def fleet(machines: int, *, interval: float = 30.0) -> Iterator[Lab]:
    """Raise machines and let them join; they are ready, and gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="eb-", dir="/tmp"))
    lab = Lab(place, machines, interval)
    try:
        lab.start()
        yield lab
    finally:
        lab.close()
        shutil.rmtree(place, ignore_errors=True)


class Lab:
    """Machines, their control plane, and one student with a key."""

    def __init__(self, place: Path, machines: int, interval: float) -> None:
        from essaim.bootstrap import App  # noqa: PLC0415 - heavy, as all below

        environ = {"ESSAIM_HOME": str(place / "home"), "ESSAIM_INTERVAL": f"{interval:g}"}
        kept = {key: value for key, value in os.environ.items() if key != "ESSAIM_DATABASE"}
        self.app: App = App({**kept, **environ})
        self.app.own_only = False
        self._place = place
        self._count = machines
        self._plane: Any = None
        self._token = ""

    def start(self) -> None:
        """Raise, serve, join."""
        self._raise()
        self._serve()
        self._join()
        self._sign_up()

    def close(self) -> None:
        """Stop serving and take the machines down."""
        from essaim.usecases import stacks as use  # noqa: PLC0415

        if self._plane is not None:
            self._plane.stop()
        try:
            if self.app.stacks.get_stack(STACK) is not None:
                use.give_way(self.app, STACK)
                use.follow(self.app, use.apply(self.app, use.make_down_plan(self.app, STACK)))
        finally:
            self.app.close()

    def _raise(self) -> None:
        from essaim.config.compose import compose  # noqa: PLC0415
        from essaim.usecases import stacks as use  # noqa: PLC0415

        composed = compose(str(LAB), (f"nodes={self._count}",))
        self.stack = composed.stack
        run = use.follow(self.app, use.apply(self.app, use.make_plan(self.app, composed)))
        if run.state.value != "done":
            raise CannotRunError(f"the machines did not come up: {run.error or run.state.value}")

    def _serve(self) -> None:
        from essaim.cli.plane import Plane, listening  # noqa: PLC0415
        from essaim.model.machines import Listens  # noqa: PLC0415

        driver = self.app.driver(self.stack.site)
        if not isinstance(driver, Listens):
            raise CannotRunError("these machines cannot call back")
        inside = driver.listen(STACK, API_PORT)
        api = listening("127.0.0.1", 0)
        self._inside = inside.getsockname()[0]
        self._plane = Plane(
            self.app,
            api=[api, inside],
            gateway=("127.0.0.1", 0),
            gateway_sockets=[driver.listen(STACK, GATEWAY_PORT)],
            told=(self._inside, GATEWAY_PORT),
        )
        self._plane.start()
        self.port = api.getsockname()[1]

    def _join(self) -> None:
        from essaim.agent import source  # noqa: PLC0415
        from essaim.usecases.credentials import digest, new_token  # noqa: PLC0415
        from essaim.usecases.machines import targets  # noqa: PLC0415

        token = new_token("enrol")
        self.app.fleet.enrol(digest(token), uses=self._count, seconds=3600)
        text = source().encode()

        def join(target: Target) -> None:
            agent = "python3 -I /usr/local/lib/essaim/agent.py"
            where = f"http://{self._inside}:{API_PORT}"
            # Playbooks need more rights than the helper has; both provisioners are measured here.
            self._run(
                target, "cat >/root/agent.py && python3 /root/agent.py install --playbooks", text
            )
            self._run(
                target,
                f"setsid runuser -u essaim -- {agent} join --server {where} --insecure --tunnel "
                ">/var/lib/essaim/log 2>&1 </dev/null &",
                env={"ESSAIM_TOKEN": token},
            )

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(join, targets(self.app, self.stack, self.stack.machines)))
        self.wait(lambda: len(self.ready()) == self._count, "not all machines joined")

    def _run(
        self, target: Target, line: str, stdin: bytes = b"", *, env: dict[str, str] | None = None
    ) -> None:
        done = self.app.remote.run(target, line, stdin=stdin, env=env or {}, within=PATIENCE)
        if done.exit_code:
            raise CannotRunError(f"{target.name}: `{line}` ended {done.exit_code}: {done.output}")

    def _sign_up(self) -> None:
        from essaim.model.fleet import Quota  # noqa: PLC0415
        from essaim.usecases.credentials import hash_password  # noqa: PLC0415

        password = secrets.token_urlsafe(12)
        plenty = Quota(machines=10_000, hours=1e6)
        self.app.people.add("student", hash_password(password), quota=plenty)
        self._token = self.call("login", name="student", password=password)["access"]
        key = self._place / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        self._public = key.with_suffix(".pub").read_text().strip()
        known = f"[127.0.0.1]:{self._plane.gateway.port} {self._plane.gateway_key}\n"
        (self._place / "known_hosts").write_text(known)

    # -- what is measured -----------------------------------------------------------------------

    def rent(self) -> str:
        """Rent a machine and wait for its account; gives the lease."""
        body = {"public_key": self._public, "seconds": 3600, "patience": 10}
        return str(self.call("rent", **body)["id"])

    def release(self, lease: str) -> None:
        """Give a machine back."""
        self.call("release", lease=lease)

    def ssh(self, lease: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command through the gateway, with OpenSSH as a student has it."""
        words = [
            "ssh", "-F", os.devnull, "-i", str(self._place / "key"), "-o", "BatchMode=yes",
            "-o", f"UserKnownHostsFile={self._place / 'known_hosts'}", "-o", "LogLevel=ERROR",
            "-o", "StrictHostKeyChecking=yes", "-p", str(self._plane.gateway.port),
            f"{lease}@127.0.0.1", command,
        ]  # fmt: skip
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def first_command(self) -> tuple[float, str]:
        """Rent, and log in as soon as that is answered; seconds until a command has run."""
        began = time.perf_counter()
        lease = self.rent()
        while self.ssh(lease, "true").returncode:
            if time.perf_counter() - began > PATIENCE:
                raise CannotRunError(f"{lease} was never let in")
            time.sleep(0.05)
        return time.perf_counter() - began, lease

    def kill(self, lease: str) -> None:
        """End the machine a lease has, without a word to anybody."""
        node = self._node(lease)
        self.app.driver(self.stack.site).stop(self._machine(node))

    def _node(self, lease: str) -> Node:
        found = self.app.leases.get(lease)
        if found is None or not found.nodes:
            raise CannotRunError(f"lease {lease} has no machine")
        (node,) = self.app.fleet.list(ids=[found.nodes[0]])
        return node

    def _machine(self, node: Node) -> MachineName:
        return next(m.name for m in self.stack.machines if m.name.machine == node.name)

    def use_ansible(self) -> None:
        """Let accounts be made by the playbook from now on."""
        from essaim.model.machines import Dials  # noqa: PLC0415
        from essaim.remote.accounts import AnsibleAccounts  # noqa: PLC0415

        driver = self.app.driver(self.stack.site)
        if not isinstance(driver, Dials):
            raise CannotRunError("Ansible cannot reach these machines")

        def proxy(target: Target) -> list[str]:
            (node,) = self.app.fleet.list(ids=[target.name.machine])
            return driver.proxy_command(self._machine(node))

        lending: Any = self.app.lending
        lending.accounts = AnsibleAccounts(
            self.app.remote,
            self.app.keyring,
            record=lambda *_words, **_named: None,
            note=lambda _text: None,
            proxy=proxy,
        )

    # -- props ----------------------------------------------------------------------------------

    def ready(self) -> list[Node]:
        """Give the machines that may be rented."""
        from essaim.model.fleet import NodeState  # noqa: PLC0415

        return self.app.fleet.list(states=[NodeState.READY])

    def wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until something holds; CannotRunError when it does not in time."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise CannotRunError(f"{otherwise} within {PATIENCE:.0f} s")
            time.sleep(0.05)

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        """Ask the API; CannotRunError when it refuses."""
        import httpx  # noqa: PLC0415

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        where = f"http://127.0.0.1:{self.port}/api/{path}"
        answer = httpx.post(where, json=body, headers=headers, timeout=60)
        if answer.is_error:
            raise CannotRunError(f"POST /api/{path}: {answer.status_code} {answer.text[:200]}")
        return dict(answer.json())
