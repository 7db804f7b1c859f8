"""The connection from the gateway to the machine that holds a lease."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh
from typing_extensions import override

from essaim.model.errors import RejectedError, TransientError

if TYPE_CHECKING:
    import socket

    from essaim.gateway.routes import Route

#: Seconds the machine has to let us in.
LOGIN_WITHIN = 20.0

_KEX = ("curve25519-sha256", "curve25519-sha256@libssh.org")
#: AES-GCM is one call into OpenSSL for each packet, where the others are two.
_CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
)
_HOST_KEYS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")


class StrangerError(RejectedError):
    """Another machine answers than the one that was pinned."""


class _Client(asyncssh.SSHClient):
    """Remembers the host key that was refused, for the record."""

    offered: asyncssh.SSHKey | None = None

    @override
    def validate_host_public_key(
        self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey
    ) -> bool:
        # Asked only when the key is not the pinned one.
        self.offered = key
        return False


async def log_in(
    route: Route, key: asyncssh.SSHKey, sock: socket.socket
) -> asyncssh.SSHClientConnection:
    """Log in as the lease's account over an open socket, which is closed when that fails.

    StrangerError when the machine is not the one that was pinned.
    """
    sock.settimeout(0)
    client = _Client()
    try:
        pinned = asyncssh.import_public_key(route.host_key)
        first = [alg.decode() for alg in pinned.sig_algorithms]
        async with asyncio.timeout(LOGIN_WITHIN):
            connection, _ = await asyncssh.create_connection(
                lambda: client,
                # Only names: the socket is there.  A tunnelled node may have no address.
                route.address or route.node,
                route.port or 22,
                sock=sock,
                config=None,
                known_hosts=([pinned], [], []),
                # The others too: a stranger's key is then seen and can be named.
                server_host_key_algs=[*first, *(alg for alg in _HOST_KEYS if alg not in first)],
                username=route.account,
                client_keys=[key],
                agent_path=None,
                preferred_auth="publickey",
                gss_host=None,
                x509_trusted_certs=None,
                kex_algs=_KEX,
                encryption_algs=_CIPHERS,
                compression_algs=None,
                keepalive_interval=15,
                keepalive_count_max=3,
                connect_timeout=None,
                login_timeout=0,
            )
            return connection
    except BaseException as exc:
        sock.close()
        if isinstance(exc, (asyncssh.Error, OSError, ValueError)):
            raise _explained(route, exc, client.offered) from exc
        raise


def _explained(
    route: Route, exc: Exception, offered: asyncssh.SSHKey | None
) -> RejectedError | TransientError:
    if isinstance(exc, TimeoutError):
        return TransientError(f"{route.node}: no login in {LOGIN_WITHIN:g} s")
    if isinstance(exc, asyncssh.HostKeyNotVerifiable):
        shown = offered.get_fingerprint() if offered else "no key"
        pinned = asyncssh.import_public_key(route.host_key).get_fingerprint()
        return StrangerError(
            f"{route.node}: the host key is not this machine's: pinned {pinned}, offered {shown}",
            hint="another machine answers there, or this one was reinstalled: register it again",
        )
    if isinstance(exc, asyncssh.KeyImportError):
        return RejectedError(f"{route.node}: the pinned host key cannot be read: {exc}")
    return TransientError(f"{route.node}: login: {exc}")
