"""A simulator of Guacamole's REST API: its shapes, errors and rules, and no desktops behind it.

python -m essaim_lab.simulators.guacamole --port 8443
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import secrets
import threading
import time
import urllib.parse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from typing_extensions import override

from essaim_lab.simulators.guacamole_rules import RefusedError, Session, State, User, bad, denied
from essaim_lab.simulators.loopback import Handler, serving, until_told

SOURCE = "mysql"
_ADMIN = "guacadmin"


class Simulator:
    """A Guacamole on the loopback, from `with` to its end.

    `url`, `ca`, `user` and `secret` are what a client needs; `state` may be looked at and changed;
    `calls` counts what was asked, such as ("POST", "connections").
    """

    def __init__(self, *, port: int = 0, latency: float = 0.0) -> None:
        self.user, self.secret = _ADMIN, secrets.token_urlsafe(12)
        self.state = State(users={_ADMIN: User(password=self.secret, system={"ADMINISTER"})})
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()
        self.latency = latency
        self._port = port
        self._faults: list[int] = []
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        served = self._stack.enter_context(serving(_Handler, self, self._port))
        self.ca, self.url = served.ca, f"{served.url}/guacamole"
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fault(self, status: int, times: int = 1) -> None:
        """Answer the next questions with that status, whatever they are."""
        with self._lock:
            self._faults += [status] * times

    def expire(self) -> None:
        """Forget every token, as happens after an hour without a question."""
        with self._lock:
            self.state.end_sessions()

    def log_in(self, person: str) -> None:
        """Let somebody log in by another extension, as through LDAP."""
        with self._lock:
            self.state.log_in(person)

    def handle(
        self,
        method: str,
        words: list[str],
        token: str,
        body: Any,
        query: Mapping[str, list[str]] = MappingProxyType({}),
    ) -> Any:
        """Answer one question.  Raises what is answered instead."""
        time.sleep(self.latency)
        path = words[2:] if words[:2] == ["guacamole", "api"] else []
        with self._lock:
            self.calls[method, path[3] if len(path) > 3 else "tokens"] += 1  # noqa: PLR2004 - a kind
            if self._faults:
                status = self._faults.pop(0)
                raise RefusedError(status, "INTERNAL_ERROR", "Unexpected internal error")
            if path == ["tokens"] and method == "POST":
                return self._log_in(body)
            if path[:2] != ["session", "data"] or len(path) < 4:  # noqa: PLR2004 - and a kind
                raise RefusedError(404, "NOT_FOUND", "HTTP 404 Not Found")
            login = self.state.tokens.get(token)
            if login is None:
                raise denied()
            if path[2] != SOURCE:
                raise RefusedError(404, "NOT_FOUND", f'Session not associated with "{path[2]}"')
            return Session(self.state, login).answer(method, path[3:], body, query)

    def _log_in(self, form: dict[str, str]) -> dict[str, Any]:
        login = form.get("username", "")
        user = self.state.users.get(login)
        if user is None or user.password is None or user.password != form.get("password"):
            raise RefusedError(403, "INVALID_CREDENTIALS", "Invalid login")
        token = secrets.token_hex(32).upper()
        self.state.tokens[token] = login
        self.state.log_in(login)
        return {
            "authToken": token,
            "username": login,
            "dataSource": SOURCE,
            "availableDataSources": [SOURCE, f"{SOURCE}-shared"],
        }


class _Handler(Handler):
    simulator: Simulator

    def _answer(self) -> None:
        raw = self.read()
        asked = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(asked.query)
        words = [urllib.parse.unquote(word) for word in asked.path.split("/")[1:] if word]
        status, body = 200, None
        try:
            token = self.headers.get("Guacamole-Token", "")
            body = self.simulator.handle(self.command, words, token, self._read(raw), query)
            status = 200 if body is not None else 204
        except RefusedError as exc:
            status, body = exc.status, exc.body
        self.give(status, b"" if body is None else json.dumps(body).encode())

    @override
    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(timestamp or self.simulator.state.now())

    def _read(self, raw: bytes) -> Any:
        if self.headers.get_content_type() == "application/x-www-form-urlencoded":
            return dict(urllib.parse.parse_qsl(raw.decode()))
        try:
            return json.loads(raw) if raw else None
        except ValueError as exc:
            raise bad("Malformed JSON") from exc

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - as http.server asks


def main() -> None:
    """Serve until a signal; prints where, and the administrator's password, on one line."""
    parser = argparse.ArgumentParser(description="a simulator of Guacamole's REST API")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds for each answer")
    words = parser.parse_args()
    with Simulator(port=words.port, latency=words.latency) as simulator:
        said = {key: str(getattr(simulator, key)) for key in ("url", "ca", "user", "secret")}
        print(json.dumps(said), flush=True)  # noqa: T201 - what starts it reads it
        until_told()


if __name__ == "__main__":
    main()
