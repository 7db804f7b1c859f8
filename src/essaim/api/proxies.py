"""Where a request really comes from, when it comes through proxies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from essaim.model.client_networks import Network, is_in, real_client

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)
SCHEMES = ("http", "https")


class TrustedProxies:
    """Puts the client's address, and the scheme it used, in the place of a trusted proxy's."""

    def __init__(self, app: ASGIApp, trusted: Collection[Network]) -> None:
        self._app = app
        self._trusted = trusted
        self._warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope.get("client"):
            said = [each for each in scope["headers"] if each[0].startswith(b"x-forwarded-")]
            if said:
                scope = self._believed(scope, Headers(raw=said))
        await self._app(scope, receive, send)

    def _believed(self, scope: Scope, headers: Headers) -> Scope:
        """The request as it came to the first proxy that is trusted."""
        peer, port = scope["client"]
        if not is_in(peer, self._trusted):
            self._warn(peer)
            return scope
        said = [each for line in headers.getlist("x-forwarded-for") for each in line.split(",")]
        scheme = headers.get("x-forwarded-proto", "").strip()
        return {
            **scope,
            "client": (real_client(peer, said, self._trusted), port),
            "scheme": scheme if scheme in SCHEMES else scope.get("scheme", "http"),
        }

    def _warn(self, peer: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "requests come through %s, which ESSAIM_TRUSTED_PROXIES does not name: if that is "
                "your proxy, everybody behind it counts as one client",
                peer,
            )
