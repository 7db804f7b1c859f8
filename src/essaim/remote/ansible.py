"""Apply a role whose body is an Ansible playbook."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.model.errors import MissingExtraError, RejectedError, TransientError
from essaim.remote.inventory import prepare
from essaim.remote.logs import Log, mask
from essaim.remote.playlog import PlayLog, TaskResult
from essaim.remote.ssh import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from essaim.model.roles import Role
    from essaim.remote.keyring import Keyring
    from essaim.remote.logs import Record
    from essaim.remote.render import Facts
    from essaim.remote.ssh import Target


def play(
    role: Role,
    targets: Sequence[tuple[Target, Facts]],
    playbook: Path | None = None,
    *,
    proxy: Callable[[Target], list[str]] | None,
    keyring: Keyring,
    record: Record,
    note: Callable[[str], None],
) -> None:
    """Run the role's playbook on these machines; RejectedError names the task that failed.

    The machines need Python 3.  The playbook finds the role's variables and needs as variables of
    their own names, and `machine`, `members`, `network` and `stack` as templates do.
    """
    playbook = playbook or role.path / (role.ansible or "playbook.yaml")
    program = find_program()
    # Short, for the path of a socket is at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="essaim-") as place:
        box = Path(place)
        arguments = prepare(box, role, targets, keyring=keyring, proxy=proxy)
        try:
            with _started([program, *arguments, str(playbook)], box) as process:
                _follow(process, role, targets, record=record, note=note)
        finally:
            hang_up(box / "cp")


def find_program() -> str:
    """Return where ansible-playbook is; SetupError when it is not installed."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    found = str(beside) if beside.exists() else shutil.which("ansible-playbook")
    if not found:
        raise MissingExtraError(
            "this role is an Ansible playbook, and there is no ansible-playbook here", "ansible"
        )
    return found


def _follow(
    process: subprocess.Popen[str],
    role: Role,
    targets: Sequence[tuple[Target, Facts]],
    *,
    record: Record,
    note: Callable[[str], None],
) -> None:
    secrets = [secret for _, facts in targets for secret in facts.secrets()]
    names = {target.name.machine: str(target.name) for target, _ in targets}
    log, began = PlayLog(), time.time()
    for line in process.stdout or ():
        event = log.read(line)
        if isinstance(event, TaskResult) and event.host in names:
            seconds = time.time() - began
            result = Result(
                exit_code=event.exit_code, output=event.output, stdout="", seconds=seconds
            )
            its = Log(record, names[event.host], secrets)
            its.keep(f"{role.name}: {event.task}", result, began)
        elif isinstance(event, str):
            began = time.time()
            note(mask(event, secrets))
    if code := process.wait():
        raise _failure(role, log, names, code=code, secrets=secrets)


def _failure(
    role: Role, log: PlayLog, names: Mapping[str, str], *, code: int, secrets: Sequence[str]
) -> RejectedError | TransientError:
    if not log.failures:
        said = mask(" / ".join(log.tail), secrets)
        return RejectedError(f"role {role.name}: ansible-playbook exited {code}: {said}")
    host, first = next(iter(log.failures.items()))
    name = names.get(host, host)
    what = f"{name}: role {role.name}: task {first.task}: {mask(first.message, secrets)}"
    if len(log.failures) > 1:
        what += f" (and {len(log.failures) - 1} more machines)"
    if all(failure.unreachable for failure in log.failures.values()):
        return TransientError(what, hint=f"essaim run {name} -- true")
    return RejectedError(what, hint=f"essaim logs {name}")


def own_environment() -> dict[str, str]:
    """Our environment without what is meant for other playbooks, and without our own secrets."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ANSIBLE_", "ESSAIM_")) and key != "SSH_AUTH_SOCK"
    }


@contextlib.contextmanager
def _started(words: Sequence[str], box: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the program in a session of its own, and end it with all its children."""
    env = {
        **own_environment(),
        "ANSIBLE_CONFIG": str(box / "ansible.cfg"),
        "ANSIBLE_HOME": str(box / "home"),
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # tasks are noted when they begin, not when a buffer is full
    }
    with subprocess.Popen(
        words,
        env=env,
        cwd=box,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def hang_up(sockets: Path) -> None:
    """End the connections Ansible left open for a later play that will not come."""
    for path in sockets.glob("*"):
        words = ["ssh", "-F", "/dev/null", "-o", f"ControlPath={path}", "-O", "exit", "essaim"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(words, capture_output=True, check=False, timeout=10)
