"""Where Nix runs: here, or on another computer over SSH whose host key is pinned."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from essaim.images.inside import environment
from essaim.model.errors import RejectedError, SetupError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: What of the user's own environment Nix and SSH go by.
_KEPT = ("HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
#: OpenSSH's own exit code, when it was not the command that failed.
_SSH_FAILED = 255
#: A login without a profile finds Nix only in some of the places it is installed to.
_FAR = 'PATH="$PATH:/nix/var/nix/profiles/default/bin:$HOME/.nix-profile/bin"; export PATH; '


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ears:
    """Who hears what a program says while it runs."""

    heard: Callable[[str], None] = lambda _line: None
    fds: tuple[int, ...] = ()  #: locks that it holds until it ends


class Host(Protocol):
    """A computer with Nix."""

    @property
    def name(self) -> str:
        """Name the computer; empty for this one."""

    def run(self, *command: str, ears: Ears = ...) -> Done:
        """Run a program to its end."""

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file from there to here."""


class Here:
    """This computer."""

    name = ""

    def run(self, *command: str, ears: Ears = Ears()) -> Done:  # noqa: B008 - frozen
        """Run a program; SetupError when there is none of that name."""
        if shutil.which(command[0], path=environment()["PATH"]) is None:
            raise SetupError(
                f"{command[0].removesuffix('-instantiate')} is not installed here",
                hint="sudo apt-get install nix-bin, or name another computer as the image's `host`",
            )
        return _run(command, ears)

    def fetch(self, path: str, target: Path) -> None:
        """Copy the file: the store's own may not be changed."""
        shutil.copyfile(path, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The way to another computer."""

    account: str  #: user@host, or host
    port: int
    host_key: str  #: as in known_hosts, without the name
    key: str  #: file of the private key; empty for what ssh itself would use

    @classmethod
    def of(cls, name: str, settings: Mapping[str, object]) -> Login:
        """Read `host`, `host_key` and `key`; RejectedError says what is wrong with them."""
        address = settings["host"]
        parts = urlsplit(address) if isinstance(address, str) else None
        if (
            parts is None
            or parts.scheme != "ssh"
            or not parts.hostname
            or parts.path not in {"", "/"}
        ):
            raise RejectedError(
                f"image {name}: host {address!r} is not understood",
                hint="for example host: ssh://alice@builder.example.org",
            )
        host_key = settings.get("host_key", "")
        if not isinstance(host_key, str) or len(host_key.split()) < 2:  # noqa: PLR2004 - kind, key
            port = f"-p {parts.port} " if parts.port else ""
            raise RejectedError(
                f"image {name}: host_key must hold the host key of {parts.hostname}",
                hint=f"ssh-keyscan -t ed25519 {port}{parts.hostname}, compare it with what its"
                " administrator says, and write what follows the name as host_key",
            )
        user = f"{parts.username}@" if parts.username else ""
        return cls(
            account=user + parts.hostname,
            port=parts.port or 22,
            host_key=" ".join(host_key.split()[:2]),
            key=str(settings.get("key", "")),
        )


@contextmanager
def there(login: Login) -> Iterator[Host]:
    """Give a computer to run programs on; only one with that host key is talked to."""
    host = login.account.rpartition("@")[2]
    with tempfile.TemporaryDirectory(prefix="essaim-") as box:
        known = Path(box) / "known_hosts"
        name = host if login.port == 22 else f"[{host}]:{login.port}"  # noqa: PLR2004 - SSH's own
        known.write_text(f"{name} {login.host_key}\n", encoding="utf-8")
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "15",
            "ServerAliveInterval": "15",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(known),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlgorithms": login.host_key.split()[0],
            # One connection for all that is said: making one costs more than most of it.
            "ControlMaster": "auto",
            "ControlPath": f"{box}/link",
            "ControlPersist": "60",
            "LogLevel": "ERROR",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        if login.key:
            own = str(Path(login.key).expanduser())
            words += ["-i", own, "-o", "IdentitiesOnly=yes"]
        ssh = ("ssh", "-T", "-p", str(login.port), *words)
        try:
            yield _There(host, (*ssh, "--", login.account))
        finally:
            _run((*ssh, "-O", "exit", "--", login.account), Ears())


@dataclass(frozen=True, slots=True)
class _There:
    name: str
    ssh: tuple[str, ...]

    def run(self, *command: str, ears: Ears = Ears()) -> Done:  # noqa: B008 - frozen
        """Run a program there; TransientError when it cannot be reached."""
        done = _run((*self.ssh, _FAR + shlex.join(command)), ears)
        self._check(done.code, done.err)
        return done

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file over the connection."""
        with target.open("wb") as file:
            done = subprocess.run(
                [*self.ssh, shlex.join(("cat", "--", path))],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.PIPE,
                env=nix_environment(),
                check=False,
            )
        said = done.stderr.decode(errors="replace").strip()
        self._check(done.returncode, said)
        if done.returncode:
            raise SetupError(f"{self.name}: {path} cannot be copied: {said}")

    def send(self, folder: Path) -> str:
        """Copy a folder into a new one there, and say where that is."""
        script = 'box=$(mktemp -d) && tar -x -f - -C "$box" && printf %s "$box"'
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                archive.add(folder, arcname=".")
            file.seek(0)
            done = subprocess.run(
                [*self.ssh, script],
                stdin=file,
                capture_output=True,
                text=True,
                env=nix_environment(),
                check=False,
            )
        self._check(done.returncode, done.stderr)
        if done.returncode:
            raise SetupError(f"{self.name}: the flake cannot be put there: {done.stderr.strip()}")
        return done.stdout

    def _check(self, code: int, said: str) -> None:
        if code != _SSH_FAILED:
            return
        if "Host key verification failed" in said or "host key" in said.lower():
            raise RejectedError(
                f"{self.name} has another host key than the image's host_key says:\n{said.strip()}",
                hint="if the computer was made anew, write its new key; if not, ask why",
            )
        if "Permission denied" in said:
            raise RejectedError(
                f"{self.name} does not let us in: {said.strip()}",
                hint="set `key` in the image, or load the key into ssh-agent",
            )
        raise TransientError(f"{self.name} cannot be reached: {said.strip()}")


@contextmanager
def flake_at(host: Host, flake: Path) -> Iterator[str]:
    """Give the folder in which the flake is on that computer."""
    if not isinstance(host, _There):
        yield str(flake)
        return
    box = host.send(flake)
    try:
        yield box
    finally:
        host.run("rm", "-rf", "--", box)


def nix_environment() -> dict[str, str]:
    """Make the environment for Nix: small, but with what tells of the user's store and caches."""
    own = {
        key: value for key, value in os.environ.items() if key in _KEPT or key.startswith("NIX_")
    }
    return {**environment(), **own}


def _run(command: Sequence[str], ears: Ears) -> Done:
    said: list[str] = []
    with (
        tempfile.TemporaryFile() as out,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env=nix_environment(),
            pass_fds=ears.fds,
        ) as process,
    ):
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        try:
            for raw in process.stderr:
                line = raw.decode(errors="replace").rstrip("\n")
                said.append(line)
                ears.heard(line)
        except BaseException:
            process.kill()
            raise
        process.wait()
        out.seek(0)
        return Done(process.returncode, out.read().decode(errors="replace"), "\n".join(said))
