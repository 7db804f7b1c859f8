"""Asks Guacamole's REST API, and tells apart why it did not do as asked."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from essaim.model.errors import EssaimError, RejectedError, SetupError, TransientError
from essaim.servers.waiting import away

_LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class GoneError(TransientError):
    """What was asked about is not there, or not any more."""


class RefusedError(RejectedError):
    """Guacamole cannot mean it: the name exists, or a value is not allowed."""


class Rest:
    """One account at one Guacamole.  Connections stay open and are shared by all threads."""

    def __init__(
        self, *, url: str, user: str, secret: str, source: str, ca: str, within: float
    ) -> None:
        self._where = f"Guacamole at {url}"
        self._user, self._secret, self._source = user, secret, source
        self._token = ""
        self._lock = threading.Lock()
        self._client = httpx.Client(
            base_url=f"{url.rstrip('/')}/api/",
            verify=_trust(ca),
            timeout=within,
            limits=httpx.Limits(max_keepalive_connections=32),
        )

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def call(self, method: str, path: Sequence[str], body: Any = None) -> Any:
        """Ask about what is at a path below the data source; logs in first where needed.

        GoneError when it is not there, RefusedError when it was refused for what was sent.
        """
        answer = self._asked(method, path, body)
        return answer.json() if answer.content else None

    def newest(self, path: Sequence[str]) -> tuple[list[dict[str, Any]], float]:
        """List a history, the newest first, and what time it is there, in seconds since 1970.

        Guacamole gives no more than a thousand, and in no order unless it is asked for one.
        """
        answer = self._asked("GET", path, query={"order": "-startDate"})
        return answer.json(), _time_there(answer)

    def _asked(
        self,
        method: str,
        path: Sequence[str],
        body: Any = None,
        query: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        answer = None
        for _ in range(2):
            token = self._token or self._log_in("")
            whole = "/".join(quote(part, safe="") for part in (self._source, *path))
            answer = self._send(
                method,
                f"session/data/{whole}",
                json=body,
                params=query,
                headers={"Guacamole-Token": token},
            )
            if answer.status_code != HTTPStatus.FORBIDDEN:
                break
            # Tokens end after an hour without a question, and when Guacamole is started anew.
            self._log_in(token)
        if answer is None or not answer.is_success:
            raise self._refusal(answer, f"{method} {'/'.join(path)}")
        return answer

    def _log_in(self, old: str) -> str:
        """Get a token in place of an old one; one of many who ask at once does it for all."""
        with self._lock:
            if self._token != old:
                return self._token
            form = {"username": self._user, "password": self._secret}
            answer = self._send("POST", "tokens", data=form)
            if not answer.is_success:
                raise self._refusal(answer, f"the log-in of {self._user}")
            given = answer.json()
            self._source = self._source or given["dataSource"]
            if self._source not in given["availableDataSources"]:
                raise RejectedError(
                    f"{self._where} has no data source {self._source}",
                    hint=f"desktop.source may be {', '.join(given['availableDataSources'])}",
                )
            self._token = str(given["authToken"])
            return self._token

    def _send(self, method: str, path: str, **words: Any) -> httpx.Response:
        began = time.monotonic()
        try:
            return self._client.request(method, path, **words)
        except httpx.TimeoutException as exc:
            raise away(self._where, f"nothing in {time.monotonic() - began:.0f} s") from exc
        except httpx.TransportError as exc:
            if "CERTIFICATE_VERIFY_FAILED" in str(exc):
                raise RejectedError(
                    f"{self._where} shows a certificate that nobody we trust has signed",
                    hint="give the certificate of whoever signed it as desktop.ca",
                ) from exc
            raise away(self._where, exc) from exc

    def _refusal(self, answer: httpx.Response | None, what: str) -> EssaimError:
        if answer is None:  # pragma: no cover - the loop runs at least once
            return TransientError(f"{self._where} was not asked")
        kind, said = _sentence(answer)
        text = f"{self._where} refused {what}: {said} ({answer.status_code})"
        if answer.is_server_error or answer.status_code in _LATER:
            return TransientError(text, hint="see the log of its servlet container")
        if kind in ("INVALID_CREDENTIALS", "INSUFFICIENT_CREDENTIALS"):
            return RejectedError(text, hint="compare desktop.user and desktop.secret")
        if answer.status_code == HTTPStatus.FORBIDDEN:
            return RejectedError(
                text, hint=f"let {self._user} administer Guacamole: it makes accounts and groups"
            )
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return GoneError(
                text, hint="is desktop.url right, with the path of the web application?"
            )
        return RefusedError(text)


def _time_there(answer: httpx.Response) -> float:
    """The time by the server's own clock; by ours when it does not say."""
    try:
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return time.time()


def _sentence(answer: httpx.Response) -> tuple[str, str]:
    """The kind and the words of an error, which a proxy in front may have made as well."""
    try:
        body = answer.json()
        return str(body["type"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        return "", answer.reason_phrase


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as exc:
        raise SetupError(
            f"the certificate {ca} cannot be read: {exc.strerror or exc}",
            hint="desktop.ca is the path of a file in PEM format",
        ) from exc
