"""The connection from the gateway to the machine that holds a lease."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh

from essaim.model.errors import RejectedError, TransientError
from essaim.remote import link

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from essaim.gateway.routes import Route

#: Seconds the machine has to let us in.
LOGIN_WITHIN = 20.0


class StrangerError(RejectedError):
    """Another machine answers than the one that was pinned."""


async def log_in(
    route: Route, keys: Sequence[asyncssh.SSHKey], sock: socket.socket
) -> asyncssh.SSHClientConnection:
    """Log in as the lease's account over an open socket, which is closed when that fails.

    StrangerError when the machine is not the one that was pinned.
    """
    sock.settimeout(0)
    client = link.Client()
    # A tunnelled node may have no address.
    at = (route.address or route.node, route.port or 22)
    try:
        pinned = asyncssh.import_public_key(route.host_key)
        async with asyncio.timeout(LOGIN_WITHIN):
            return await link.log_in(client, sock, at, user=route.account, keys=keys, pinned=pinned)
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
