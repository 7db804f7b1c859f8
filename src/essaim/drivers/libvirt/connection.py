"""One connection to a libvirt server, which any number of threads use at once."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from essaim.drivers.libvirt import dial, ssh
from essaim.drivers.libvirt.sdk import libvirt
from essaim.drivers.libvirt.settings import Settings, read
from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.model.stacks import Site

#: Seconds without a call after which the server is asked whether it is still there.
_IDLE = 0.5


class Connection:
    """The way to a site's server, opened when first used and again whenever it was lost.

    A child that was forked has one of its own: two processes must never speak on one.
    """

    def __init__(self, site: Site, state: Path) -> None:
        self.settings: Settings = read(site)
        self.remote = self.settings.remote
        self._state = state
        self._lock = threading.Lock()
        self._open: Any = None
        self._used = 0.0
        self._folder: Path | None = None
        _ALL.add(self)

    @property
    def folder(self) -> Path | None:
        """Where what OpenSSH needs lies; None when the server is this computer."""
        if self._folder is None and self.remote:
            self._folder = ssh.lay_out(self.settings, self._state)
        return self._folder

    @property
    def uri(self) -> str:
        """The server's address for libvirt, with the way that pins its key."""
        uri = self.settings.uri
        if self.folder is None:
            return uri
        way = {"command": str(ssh.wrapper(self.folder)), "no_tty": "1"}
        # libvirt takes a plus sign as it stands.
        return uri + ("&" if "?" in uri else "?") + urlencode(way, quote_via=quote)

    def get(self) -> Any:
        """An open virConnect; TransientError when there is no way to the server just now."""
        with self._lock:
            if self._open is None or not self._lives():
                self._open = self._connect()
            self._used = time.monotonic()
            return self._open

    def _lives(self) -> bool:
        try:
            if not self._open.isAlive():
                return False
            if time.monotonic() - self._used > _IDLE:
                self._open.getLibVersion()
        except libvirt.libvirtError:
            return False
        return True

    def _connect(self) -> Any:
        with suppress(libvirt.libvirtError):
            if self._open is not None:
                self._open.close()
        self._open = None
        if self.folder is not None:
            try:
                dial.raise_master(self.folder, self.settings.host)
            except dial.SshError as error:
                raise ssh.explain(self.settings, str(error)) from error
        with self.doing("connecting"):
            return libvirt.open(self.uri)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Turn libvirt's errors into ours, which say what was being done and where."""
        try:
            yield
        except libvirt.libvirtError as error:
            raise translate(error, f"site {self.settings.site}: {what}") from error

    def ssh(
        self,
        *words: str,
        input: bytes = b"",  # noqa: A002 - as subprocess calls it
        within: float = 30,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program on the server, which may be this computer; never through words of a shell.

        A nonzero exit code is a result, not an error.
        """
        if self.folder is not None:
            return ssh.run(self.folder, self.settings, words, input, within)
        try:
            return subprocess.run(
                words, input=input, capture_output=True, timeout=within, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TransientError(
                f"site {self.settings.site}: `{words[0]}` did not end in {within:.0f} s"
            ) from error
        except FileNotFoundError as error:
            # As a shell on a server answers.
            return subprocess.CompletedProcess(words, 127, b"", str(error).encode())

    def close(self) -> None:
        """Let go of the connection; it opens again when used."""
        with self._lock:
            if self._open is not None:
                with suppress(libvirt.libvirtError):
                    self._open.close()
            self._open = None

    def forked(self) -> None:
        """Begin anew in a child: the lock may be a copy of one that was held."""
        self._lock = threading.Lock()
        # Kept for ever: to let go of the parent's connection would say goodbye in its name.
        _ABANDONED.append(self._open)
        self._open = None


_ALL: weakref.WeakSet[Connection] = weakref.WeakSet()
_ABANDONED: list[Any] = []


def _begin_anew() -> None:
    for each in list(_ALL):
        each.forked()


os.register_at_fork(after_in_child=_begin_anew)


#: What passes by itself: a lost way, a server that has too much to do, a lock.
_PASSING = (
    libvirt.VIR_ERR_NO_CONNECT,
    libvirt.VIR_ERR_NO_STORAGE_POOL,  # made anew when next used
    libvirt.VIR_ERR_OPERATION_ABORTED,
    libvirt.VIR_ERR_OPERATION_TIMEOUT,
    libvirt.VIR_ERR_RESOURCE_BUSY,
    libvirt.VIR_ERR_RPC,
)
_WAYS = (libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_STREAMS)
_FORBIDDEN = (
    libvirt.VIR_ERR_ACCESS_DENIED,
    libvirt.VIR_ERR_AUTH_CANCELLED,
    libvirt.VIR_ERR_AUTH_FAILED,
    libvirt.VIR_ERR_AUTH_UNAVAILABLE,
    libvirt.VIR_ERR_OPERATION_DENIED,
)
#: What a shell on the server says of a program that it does not find.
_LASTING = ("virt-ssh-helper", "nc: ")
#: What libvirt says, in part, and what to do about it.
_HINTS = {
    "No space left": "free space on the server, or remove machines",
    "Cannot allocate memory": "the server has no memory left: smaller machines, or fewer",
    "Failed to connect socket": "libvirtd does not run; root has no session: use another account",
    "virt-ssh-helper": "libvirt is not installed there, or not on the account's PATH",
    "nc: ": "libvirt is not installed there, or not on the account's PATH",
    "does not support virt type": "see what the server can do: essaim doctor",
    "/dev/kvm": "the account may not use KVM there: set the site's accelerator to tcg",
}


def translate(error: Any, doing: str) -> EssaimError:
    """Our error for one of libvirt's: transient when the same call may work in a moment."""
    code, said = error.get_error_code(), str(error)
    what = f"{doing}: {said}"
    hint = next((hint for part, hint in _HINTS.items() if part in said), "")
    if code in _FORBIDDEN:
        hint = hint or "ask for the group libvirt there, or use a /session address"
        return RejectedError(what, hint=hint)
    lost = error.get_error_domain() in _WAYS and not any(word in said for word in _LASTING)
    if code in _PASSING or lost:
        return TransientError(what, hint=hint)
    return RejectedError(what, hint=hint or "essaim doctor says what the account may do there")


def is_missing(error: Any) -> bool:
    """Whether libvirt says that there is no such domain, volume, pool or network."""
    missing = (
        libvirt.VIR_ERR_NO_DOMAIN,
        libvirt.VIR_ERR_NO_NETWORK,
        libvirt.VIR_ERR_NO_STORAGE_POOL,
        libvirt.VIR_ERR_NO_STORAGE_VOL,
    )
    return error.get_error_code() in missing
