"""Guest agents of real machines: what they are asked to do is done there, over SSH as root."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from essaim.model.errors import EssaimError
from essaim.remote.keyring import Keyring
from essaim.remote.ssh import Remote, Target
from essaim_lab.simulators.proxmox.guest_agent import GONE, HOST_KEY, Ended
from essaim_lab.simulators.proxmox.state import Guest

_WITHIN = 30.0
_THREADS = 8
# What distributions do at the first boot, and the sandbox does not.
_PUBLISH = 'if [ ! -e "$1" ]; then cat >"$1"; fi'


class AgentRunner:
    """Runs commands in the machines that `target` finds; None for one that is not there."""

    def __init__(self, folder: Path, target: Callable[[Guest], Target | None]) -> None:
        self._keyring = Keyring(folder)
        self._remote = Remote(self._keyring)
        self._target = target
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="proxmox-agent")
        self._published: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    @property
    def key(self) -> str:
        """What lets it in: a line for authorized_keys."""
        return self._keyring.user_public_key()

    def __call__(
        self, guest: Guest, words: Sequence[str], data: bytes
    ) -> Callable[[], Ended | None]:
        """Begin a command; what is returned gives None until it has ended."""
        future: Future[Ended] = self._pool.submit(self._run, guest, tuple(words), data)
        return lambda: future.result() if future.done() else None

    def _run(self, guest: Guest, words: Sequence[str], data: bytes) -> Ended:
        target = self._target(guest)
        if target is None:
            return GONE
        try:
            self._publish(guest, target)
            done = self._remote.run(target, words, stdin=data or b"\n", within=_WITHIN)
        except EssaimError:
            return GONE
        return Ended(done.exit_code, done.stdout.encode(), done.output.encode())

    def _publish(self, guest: Guest, target: Target) -> None:
        """Let the machine have the public half of its host key as a file."""
        known = (guest.vmid, target.host_key)
        with self._lock:
            if known in self._published:
                return
            words = ["sh", "-c", _PUBLISH, "sh", HOST_KEY]
            line = f"{target.host_key} root@{guest.name}\n".encode()
            self._remote.run(target, words, stdin=line, within=_WITHIN)
            self._published.add(known)

    def close(self) -> None:
        """End all connections."""
        self._pool.shutdown(cancel_futures=True)
        self._remote.close()
