"""Play a project's playbook on its machines, through ansible-runner."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from essaim.config.plays import Play
from essaim.model.errors import MissingExtraError, RejectedError, TransientError
from essaim.remote.ansible import find_program, hang_up, own_environment
from essaim.remote.inventory import CONFIG, foreign, ssh_options, to_yaml, write_private
from essaim.remote.keyring import alias
from essaim.remote.logs import Log, last_line, mask
from essaim.remote.ssh import Result

if TYPE_CHECKING:
    from essaim.remote.keyring import Keyring
    from essaim.remote.logs import Record
    from essaim.remote.ssh import Target

#: Seconds a play has to end once it is not wanted any more.
_END_WITHIN = 15.0
#: Lines kept of what is no result of any task: what Ansible itself complains about.
_COMPLAINTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A machine as a playbook sees it."""

    name: str  #: in the inventory: the host's full name
    target: Target
    vars: Mapping[str, Any] = field(default_factory=dict)


def play(
    wanted: Play,
    players: Sequence[Player],
    extravars: Mapping[str, Any],
    *,
    secrets: Sequence[str],
    keyring: Keyring,
    proxy: Callable[[Target], list[str]] | None,
    record: Record,
    note: Callable[[str], None],
) -> None:
    """Run the playbook on these machines; RejectedError names the machine and task that failed.

    Results go to `record` as they come, without `secrets`.  TransientError when the only thing
    that went wrong is that machines could not be reached.
    """
    program = find_runner()
    # Short, for the path of a socket is at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="essaim-") as place:
        box = Path(place)
        fill(box, wanted, players, extravars, keyring=keyring, proxy=proxy)
        try:
            with _started(box, program) as lines:
                names = {player.name: str(player.target.name) for player in players}
                _follow(lines, Following(wanted, names, secrets, record, note))
        finally:
            hang_up(box / "cp")


def find_runner() -> Path:
    """Return the folder ansible-playbook is in; SetupError when that or ansible-runner lacks."""
    if find_spec("ansible_runner") is None:
        raise MissingExtraError(
            "playbooks are played by ansible-runner, which is not installed here", "ansible"
        )
    return Path(find_program()).parent


def fill(
    box: Path,
    wanted: Play,
    players: Sequence[Player],
    extravars: Mapping[str, Any],
    *,
    keyring: Keyring,
    proxy: Callable[[Target], list[str]] | None,
) -> None:
    """Write all that ansible-runner is told into files that only we can read."""
    known = box / "known_hosts"
    hosts = {
        player.name: {
            **player.vars,
            **connection(player.target, keyring=keyring, known_hosts=known, proxy=proxy),
        }
        for player in players
    }
    group = {"hosts": dict.fromkeys(hosts)}
    folder, home = wanted.playbook.parent, wanted.home
    roles = ":".join(str(place / "roles") for place in dict.fromkeys((folder, home)))
    for name in ("env", "inventory"):
        (box / name).mkdir(mode=0o700)
    lines = "".join(f"{alias(p.target.name)} {p.target.host_key}\n" for p in players)
    write_private(known, lines)
    config = CONFIG.format(box=box).replace("[defaults]", f"[defaults]\nroles_path = {roles}", 1)
    write_private(box / "ansible.cfg", config)
    inventory = {"all": {"hosts": foreign(hosts), "children": {wanted.group: group}}}
    write_private(box / "inventory" / "hosts.yaml", to_yaml(inventory))
    for name in ("group_vars", "host_vars"):
        # As if the inventory lay in the workspace; what is beside the playbook Ansible finds.
        if home != folder and (home / name).is_dir():
            (box / "inventory" / name).symlink_to(home / name)
    write_private(box / "env" / "extravars", to_yaml(foreign(extravars)))
    settings = {"pexpect_timeout": 1, "suppress_output_file": True}
    write_private(box / "env" / "settings", json.dumps(settings))
    asked = {
        "playbook": str(wanted.playbook),
        "folder": str(folder),
        "tags": ",".join(wanted.tags) or None,
    }
    write_private(box / "play.json", json.dumps(asked))


def connection(
    target: Target,
    *,
    keyring: Keyring,
    known_hosts: Path,
    proxy: Callable[[Target], list[str]] | None,
) -> dict[str, Any]:
    """Give the variables by which Ansible reaches a machine, and believes no other."""
    return {
        "ansible_host": target.address,
        "ansible_port": target.port,
        "ansible_user": target.user,
        "ansible_ssh_private_key_file": str(keyring.path(target.key)),
        "ansible_ssh_common_args": shlex.join(ssh_options(target, known_hosts, proxy)),
    }


@contextlib.contextmanager
def _started(box: Path, programs: Path) -> Iterator[IO[str]]:
    """Start the player in a session of its own; however this ends, the play ends with it."""
    kept = own_environment()
    env = {
        **kept,
        "PATH": f"{programs}:{kept.get('PATH', os.defpath)}",
        "ANSIBLE_CONFIG": str(box / "ansible.cfg"),
        "ANSIBLE_HOME": str(box / "home"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner would turn it off
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }
    with (
        (box / "complaints").open("wb") as complaints,
        subprocess.Popen(
            [sys.executable, "-m", "essaim.remote.player", str(box)],
            env=env,
            cwd=box,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101 - for the type checker
        try:
            yield process.stdout
        finally:
            process.stdin.close()  # the player ends the play, then itself
            try:
                process.wait(timeout=_END_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()


def _follow(lines: IO[str], following: Following) -> None:
    end: dict[str, Any] | None = None
    for line in lines:
        said = _read(line)
        if said.get("kind") == "end":
            end = said
        else:
            following.take(said)
    following.judge(end)


class Following:
    """Takes note of a play as it goes on, and judges it in the end."""

    def __init__(
        self,
        wanted: Play,
        names: Mapping[str, str],
        secrets: Sequence[str],
        record: Record,
        note: Callable[[str], None],
    ) -> None:
        """`names` says which machine a host of the inventory is."""
        self._what = f"playbook {wanted.playbook.name}"
        self._group = wanted.group
        self._names = names
        self._secrets = secrets
        self._record = record
        self._note = note
        self._began = time.time()
        self._results = 0
        self._nobody = False
        self._failures: dict[str, dict[str, Any]] = {}
        self._lines: list[str] = []

    def take(self, said: Mapping[str, Any]) -> None:
        """Take note of what `player.told` made of an event."""
        kind = said.get("kind")
        if kind == "task":
            self._began = time.time()
            self._note(mask(str(said["name"]), self._secrets))
        elif kind == "result":
            self._keep(said)
        elif kind == "nobody":
            self._nobody = True
        elif kind == "line":
            self._lines = [*self._lines, str(said["text"])][-_COMPLAINTS:]

    def _keep(self, said: Mapping[str, Any]) -> None:
        self._results += 1
        machine = self._names.get(said["host"])
        if said["failed"] and not said["ignored"]:
            self._failures.setdefault(said["host"], dict(said))
        if machine is None:
            return  # on this computer, by delegation
        result = Result(
            exit_code=said["exit_code"],
            output=said["output"],
            stdout="",
            seconds=time.time() - self._began,
        )
        log = Log(self._record, machine, self._secrets)
        log.keep(f"{self._what}: {said['task']}", result, self._began)

    def judge(self, end: Mapping[str, Any] | None) -> None:
        """Raise what went wrong, by how the play ended: None when that was not seen."""
        if end is None:
            raise TransientError(f"{self._what}: the player ended before the play did")
        if end["exit_code"] == 0 and end["status"] == "successful":
            if self._nobody and not self._results:
                raise RejectedError(
                    f"{self._what} is for none of the machines",
                    hint=f"`hosts: {self._group}` in the playbook, or another ansible.group",
                )
            return
        if not self._failures:
            said = mask(" / ".join(self._lines), self._secrets)
            raise RejectedError(f"{self._what}: ansible-playbook exited {end['exit_code']}: {said}")
        host, first = next(iter(self._failures.items()))
        name = self._names.get(host, host)
        why = last_line(mask(first["output"], self._secrets)) or "no message"
        what = f"{name}: {self._what}: task {first['task']}: {why}"
        if len(self._failures) > 1:
            what += f" (and {len(self._failures) - 1} more machines)"
        if all(failure["unreachable"] for failure in self._failures.values()):
            raise TransientError(what, hint=f"essaim run {name} -- true")
        raise RejectedError(what, hint=f"essaim logs {name}")


def _read(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {"kind": "line", "text": line.strip()}
    return said if isinstance(said, dict) else {}
