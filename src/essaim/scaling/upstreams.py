"""Tells a proxy where the replicas are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from essaim.model.errors import RejectedError, TransientError

ANSWER_WITHIN = 10.0


class Upstreams(Protocol):
    """Whoever has to know where the replicas are."""

    def show(self, addresses: Sequence[str]) -> None:
        """Send requests to these from now on, and to no others."""

    def close(self) -> None:
        """Let go of connections."""


class Caddy:
    """A Caddy, through its administration API.

    `url` is that of its API, or that of a list of upstreams within its configuration when there is
    more than one `reverse_proxy`.  What it was told is looked at each time: one that was started
    anew has forgotten.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/")
        self._http = httpx.Client(base_url=self._base, timeout=ANSWER_WITHIN)

    def show(self, addresses: Sequence[str]) -> None:
        """Replace its upstreams, if they are others."""
        path = self._path or self._find()
        wanted = sorted(addresses)
        # Without any it would refuse its configuration; those that are gone answer as little.
        if wanted and sorted(each.get("dial", "") for each in self._ask("GET", path)) != wanted:
            self._ask("PATCH", path, [{"dial": each} for each in wanted])

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def _find(self) -> str:
        found = list(_proxies(self._ask("GET", "/config/"), "/config"))
        if len(found) == 1:
            return found[0]
        raise RejectedError(
            f"caddy at {self._base}: there are {len(found)} reverse proxies, and not one",
            hint="name one: " + " or ".join(f"{self._base}{path}" for path in found)
            if found
            else "add a reverse_proxy to its Caddyfile",
        )

    def _ask(self, verb: str, path: str, body: Any = None) -> Any:
        try:
            answer = self._http.request(verb, path, json=body)
            answer.raise_for_status()
            return answer.json() if answer.content else None
        except httpx.HTTPStatusError as error:
            raise TransientError(
                f"caddy at {self._base}: {verb} {path}: {error.response.status_code} "
                f"{error.response.text[:200]}"
            ) from error
        except (httpx.HTTPError, ValueError) as error:
            raise TransientError(
                f"caddy at {self._base}: no answer to {verb} {path}: {error}",
                hint="see that it runs and that its `admin` address is this one",
            ) from error


def _proxies(config: Any, path: str) -> Iterator[str]:
    """Find the lists of upstreams in a configuration."""
    if isinstance(config, dict):
        if config.get("handler") == "reverse_proxy" and "upstreams" in config:
            yield f"{path}/upstreams"
        for key, value in config.items():
            yield from _proxies(value, f"{path}/{key}")
    elif isinstance(config, list):
        for number, value in enumerate(config):
            yield from _proxies(value, f"{path}/{number}")
