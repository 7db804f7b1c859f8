"""The keys of a control plane: those it logs in with, and one identity for each machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError
from essaim.model.names import NAME, MachineName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The file of each key: of machines of stacks, of nodes, of leases' accounts, of the gateways.
FILES = {"user": "id_ed25519", "control": "control", "lease": "lease", "gateway": "gateway"}
#: What a key is called while it is rotated: the one to come, and the one that goes.
NEXT, OLD = ".next", ".old"


class Keyring:
    """Keys as files only their owner can read.  Each is made at first use, exactly once.

    Safe for any number of threads and processes: whoever links the file into place first wins, and
    everybody else reads that one.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def user_key(self) -> Path:
        """Give the private key that logs in to machines of stacks; its public half is beside it."""
        path = self._root / "id_ed25519"
        public = path.with_name(path.name + ".pub")
        text = public_half(self._once(path, _new_key))
        if not public.exists():
            _replace(public, text.encode() + b"\n")
        return path

    @functools.cache  # noqa: B019 - a keyring lives as long as its process
    def user_public_key(self) -> str:
        """Give the public half of the user key, as a line of `authorized_keys`."""
        return public_half(self._once(self.user_key(), _new_key))

    def gateway_key(self) -> Path:
        """Give the private key that all gateways of this control plane show."""
        return self.make("gateway")

    def gateway_public_key(self) -> str:
        """Give the public half of the gateways' key, as in `known_hosts`."""
        return public_half(self.make("gateway").read_bytes())

    def make(self, name: str) -> Path:
        """Give the file of a key of its own, made when it is not there."""
        path = self._root / FILES[name]
        self._once(path, _new_key)
        return path

    def holds(self, name: str) -> Path | None:
        """Give the file of a key; None when it was not made yet."""
        path = self._root / FILES[name]
        return path if path.exists() else None

    def path(self, name: str) -> Path:
        """Give the file of the key that is used as this one.

        A control plane that is older than the keys `control` and `lease` has one for all: `user`.
        """
        found = self.holds(name)
        if found is None and name in ("control", "lease"):
            found = self.holds("user")
        return found or (self.user_key() if name == "user" else self.make(name))

    def paths(self, name: str) -> list[Path]:
        """Give the files of a key and, while it is rotated, of its successor or predecessor."""
        first = self.path(name)
        others = (self._root / f"{FILES[name]}{more}" for more in (NEXT, OLD))
        return [first, *(each for each in others if each.exists())]

    def public_keys(self, name: str) -> list[str]:
        """Give the public halves of `paths`."""
        return [public_half(path.read_bytes()) for path in self.paths(name)]

    def begin_rotation(self, name: str) -> None:
        """Make the successor of a key, beside it."""
        self._once(self._root / f"{FILES[name]}{NEXT}", _new_key)

    def promote(self, name: str) -> None:
        """Let the successor be the key, and the key its predecessor.  Nothing if it is."""
        path = self._root / FILES[name]
        following, old = path.with_name(path.name + NEXT), path.with_name(path.name + OLD)
        if following.exists():
            # What both read is never missing: first a second name, then the exchange.
            self._once(old, self.path(name).read_bytes)
            following.replace(path)

    def end_rotation(self, name: str) -> None:
        """Forget the predecessor of a key."""
        (self._root / f"{FILES[name]}{OLD}").unlink(missing_ok=True)

    @property
    def folder(self) -> Path:
        """Where the keys are."""
        return self._root

    def host_key(self, name: MachineName) -> str:
        """Give the private key a machine identifies itself with, as OpenSSH text.

        A key that was pinned for that name is believed no more.
        """
        self._pin_path(name).unlink(missing_ok=True)
        return self._once(self._host_path(name), _new_key).decode()

    def host_public_key(self, name: MachineName) -> str:
        """Give the key a machine must show when it is connected to: `ssh-ed25519 AAAA…`."""
        return self.pinned(name) or public_half(self._once(self._host_path(name), _new_key))

    def pinned(self, name: MachineName) -> str:
        """Return the key that was pinned for a machine that made its own; empty when none was."""
        with contextlib.suppress(FileNotFoundError):
            return self._pin_path(name).read_text(encoding="ascii").strip()
        return ""

    def pin(self, name: MachineName, public: str) -> None:
        """Believe this key of a machine that has an identity of its own: see `workflows`."""
        path = self._pin_path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        _replace(path, f"{public}\n".encode("ascii"))

    def digest_key(self) -> bytes:
        """Give a secret for keyed digests, so that a digest of a secret says nothing about it."""
        return self._once(self._root / "digest.key", lambda: secrets.token_bytes(32))

    def drawn(self, stack: str, name: str) -> str:
        """Give the random text of that name: 64 bytes in hexadecimal, the same until forgotten."""
        file = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        path = self._stack_path(stack) / f".drawn-{file}"
        return self._once(path, lambda: secrets.token_hex(64).encode()).decode()

    def forget(self, stack: str) -> None:
        """Remove the keys of a stack's machines, and what was drawn for it."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._stack_path(stack))

    def known_hosts(self, names: Iterable[MachineName]) -> str:
        """Give lines for OpenSSH's known_hosts, to be used with `HostKeyAlias` = `alias(name)`."""
        return "".join(f"{alias(name)} {self.host_public_key(name)}\n" for name in names)

    def known_hosts_file(self, names: Iterable[MachineName]) -> Path:
        """Write `known_hosts(names)` to a file; `forget` of the first one's stack removes it."""
        wanted = list(names)
        body = self.known_hosts(wanted).encode()
        # Named after its content: two callers never see each other's half-written list.
        name = hashlib.blake2b(body, digest_size=8).hexdigest()
        path = self._stack_path(wanted[0].stack) / f".known_hosts-{name}"
        self._once(path, lambda: body)
        return path

    def _host_path(self, name: MachineName) -> Path:
        if not NAME.fullmatch(name.machine):
            raise ValueError(name.machine)
        return self._stack_path(name.stack) / name.machine

    def _pin_path(self, name: MachineName) -> Path:
        return self._host_path(name).with_suffix(".pub")  # no name holds a dot

    def _stack_path(self, stack: str) -> Path:
        # A name becomes a path here, so nothing but a name may pass.
        if not NAME.fullmatch(stack):
            raise ValueError(stack)
        return self._root / "hosts" / stack

    def _once(self, path: Path, make: Callable[[], bytes]) -> bytes:
        """Read the file; make it first when it is not there."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            pass
        except PermissionError as exc:
            raise SetupError(
                f"{path} cannot be read", hint="run essaim as the user who owns it"
            ) from exc
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        draft = _draft(path, make())
        try:
            # Unlike a rename, a link never replaces the file another process has just made.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        return path.read_bytes()


def alias(name: MachineName) -> str:
    """Say how known_hosts calls a machine: addresses are used again by others, names are not."""
    return f"{name.stack}.{name.machine}"


def _draft(path: Path, body: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _replace(path: Path, body: bytes) -> None:
    _draft(path, body).replace(path)


def _new_key() -> bytes:
    # The cryptography package directly: 40 ms to import, where asyncssh takes 300 and ssh-keygen
    # costs a process for each machine.
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - heavy
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - heavy

    return ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def public_half(private: bytes) -> str:
    """Give the public half of a private ed25519 key, as a line of `authorized_keys`."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - heavy

    key: Ed25519PrivateKey = serialization.load_ssh_private_key(private, None)  # type: ignore[assignment]  # this file holds what _new_key made
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        .decode()
    )
