"""Make one authenticated SSH connection, knowing how far it came."""

from __future__ import annotations

import asyncio
import enum
import functools
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncssh
from typing_extensions import override

from essaim.model.errors import HostKeyError, RejectedError, TransientError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from essaim.remote.ssh import Target

#: Seconds each stage may take.
TCP_WITHIN = 10.0
#: Seconds a driver that dials by itself may look for a machine that is slow to speak.
DIAL_WITHIN = 60.0
LOGIN_WITHIN = 60.0

#: The usual first choice, a post-quantum exchange, costs ten times the processor time for each
#: machine.
KEX = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
# AES-GCM is one call into OpenSSL for each packet where the others are two.
_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)
_HOST_KEYS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")


class Stage(enum.IntEnum):
    """What a connection being made is waiting for, in order."""

    TCP = 0
    BANNER = 1
    LOGIN = 2

    @property
    def text(self) -> str:
        """The stage as its absence is called in messages."""
        return ("tcp", "no banner", "login")[self]


@dataclass
class Progress:
    """How far a connection being made has come, for whoever loses patience."""

    stage: Stage = Stage.TCP


class Client(asyncssh.SSHClient):
    """Remembers the host key that was refused, for the message."""

    offered: asyncssh.SSHKey | None = None

    @override
    def validate_host_public_key(
        self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey
    ) -> bool:
        # Asked only when the key is not the pinned one.
        self.offered = key
        return False


async def log_in(
    client: Client,
    sock: socket.socket,
    at: tuple[str, int],
    *,
    user: str,
    keys: Sequence[asyncssh.SSHKey],
    pinned: asyncssh.SSHKey,
) -> asyncssh.SSHClientConnection:
    """Log in over an open socket, believing the pinned host key alone.

    `at` only gives names to what asyncssh says.  Errors are asyncssh's: whoever calls knows what
    they mean there.
    """
    first = [alg.decode() for alg in pinned.sig_algorithms]
    connection, _ = await asyncssh.create_connection(
        lambda: client,
        *at,
        sock=sock,
        config=None,
        known_hosts=([pinned], [], []),
        # The others too: a stranger's key is then seen and can be named.
        server_host_key_algs=[*first, *(alg for alg in _HOST_KEYS if alg not in first)],
        username=user,
        client_keys=list(keys),
        agent_path=None,
        preferred_auth="publickey",
        gss_host=None,
        x509_trusted_certs=None,
        kex_algs=KEX,
        encryption_algs=_CIPHERS,
        compression_algs=None,
        keepalive_interval=15,
        keepalive_count_max=3,
        connect_timeout=None,
        login_timeout=0,
    )
    return connection


async def connect(
    target: Target,
    keys: Sequence[asyncssh.SSHKey],
    executor: Executor,
    progress: Progress,
    *,
    banner_within: float,
) -> asyncssh.SSHClientConnection:
    """Connect and log in; TransientError names the stage that was not reached."""
    sock = await _open(target, executor)
    try:
        progress.stage = Stage.BANNER
        await _banner(target, sock, banner_within)
        progress.stage = Stage.LOGIN
        return await _log_in(target, keys, sock)
    except BaseException:
        sock.close()
        raise


async def _open(target: Target, executor: Executor) -> socket.socket:
    dial = target.dial or functools.partial(
        socket.create_connection, (target.address, target.port), TCP_WITHIN
    )
    work = asyncio.get_running_loop().run_in_executor(executor, dial)
    try:
        async with asyncio.timeout(DIAL_WITHIN if target.dial else TCP_WITHIN + 1):
            sock = await asyncio.shield(work)
    except TimeoutError as exc:
        work.add_done_callback(_close_late)
        raise missing(target, "tcp", "no answer") from exc
    except asyncio.CancelledError:
        work.add_done_callback(_close_late)
        raise
    except ConnectionRefusedError as exc:
        raise missing(target, "tcp", "refused") from exc
    except OSError as exc:
        raise missing(target, "tcp", exc.strerror or str(exc)) from exc
    sock.settimeout(0)
    return sock


def _close_late(work: asyncio.Future[socket.socket]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()


async def _banner(target: Target, sock: socket.socket, within: float) -> None:
    """Wait until the server speaks, which it does first.

    A port forward may accept before anything listens behind it; such a connection is given up
    early, so that the next one finds the server.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        async with asyncio.timeout(within):
            await readable.wait()
        if not sock.recv(1, socket.MSG_PEEK):
            raise missing(target, "no banner", "the connection was closed")
    except TimeoutError as exc:
        raise missing(target, "no banner", f"silent for {within:g} s") from exc
    except OSError as exc:
        raise missing(target, "no banner", exc.strerror or str(exc)) from exc
    finally:
        loop.remove_reader(sock)


async def _log_in(
    target: Target, keys: Sequence[asyncssh.SSHKey], sock: socket.socket
) -> asyncssh.SSHClientConnection:
    client = Client()
    pinned = asyncssh.import_public_key(target.host_key)
    # One that is only dialled has no address, and asyncssh wants some name.
    at = (target.address or str(target.name), target.port)
    try:
        async with asyncio.timeout(LOGIN_WITHIN):
            return await log_in(client, sock, at, user=target.user, keys=keys, pinned=pinned)
    except TimeoutError as exc:
        raise missing(target, "login", f"no answer in {LOGIN_WITHIN:g} s") from exc
    except asyncssh.HostKeyNotVerifiable as exc:
        raise _stranger(target, pinned, client.offered) from exc
    except asyncssh.KeyExchangeFailed as exc:
        raise RejectedError(
            f"{target.name}: {_at(target)} speaks no SSH algorithm we accept: {exc.reason}",
            hint="give the machine a current OpenSSH server",
        ) from exc
    except asyncssh.PermissionDenied as exc:
        raise missing(target, "login refused", exc.reason) from exc
    except (asyncssh.Error, OSError) as exc:
        raise missing(target, "login", str(exc) or "the connection ended") from exc


def _stranger(
    target: Target, pinned: asyncssh.SSHKey, offered: asyncssh.SSHKey | None
) -> HostKeyError:
    shown = offered.get_fingerprint() if offered else "no key"
    return HostKeyError(
        f"{target.name}: the host key at {_at(target)} is not this machine's: "
        f"pinned {pinned.get_fingerprint()}, offered {shown}",
        hint="another machine answers there, or this one was reinstalled by hand: rebuild it",
    )


def missing(target: Target, stage: str, why: str) -> TransientError:
    """Say which stage was not reached, and why."""
    return TransientError(f"{target.name}: {stage} at {_at(target)}: {why}")


def _at(target: Target) -> str:
    return f"{target.address}:{target.port}"
