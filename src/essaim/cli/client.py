"""Talks to a server as the person who is logged in, and turns its problems into our errors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from essaim.cli import session
from essaim.cli.session import Kept
from essaim.cli.tongue import in_their_language, said, spoken
from essaim.model import errors
from essaim.model.errors import EssaimError, RejectedError, TransientError, UnauthorisedError
from essaim.model.words import one

if TYPE_CHECKING:
    import ssl

    import httpx

#: Where `essaim serve` listens when nobody says anything else.
HERE = "http://127.0.0.1:8080"
ANSWER_WITHIN = 30.0
REFRESH_WITHIN = 10.0
#: Seconds before each new try of what may be repeated.
PAUSES = (0.3, 1.0, 2.0)
PAGE = 500
UNAUTHORISED, FORBIDDEN, TOO_MANY, BUSY = 401, 403, 429, 503


class LoginError(UnauthorisedError):
    """Nobody is logged in here, or not any more."""

    exit_code = 3


class UnreachableError(TransientError):
    """The server does not answer, or what answers is not one."""

    code = "unreachable"


class Client:
    """One server.  Requests are made as the person who is logged in, and refreshed by itself."""

    def __init__(self, kept: Kept) -> None:
        import httpx

        check_address(kept.server, insecure=kept.insecure)
        self.server = kept.server
        #: An authority is trusted that the system does not know.
        self.own_authority = bool(kept.ca)
        self._http = httpx.Client(
            base_url=kept.server,
            timeout=httpx.Timeout(ANSWER_WITHIN, connect=5.0),
            headers={"Accept-Language": spoken(), "User-Agent": "essaim"},
            verify=_trust(kept.ca),
            # A loopback server is not behind a proxy; others may be.
            trust_env=not is_loopback(urlsplit(kept.server).hostname or ""),
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        """Ask for something."""
        return read_json(self.ask("GET", path, params=query, repeatable=True))

    def post(
        self, path: str, body: dict[str, Any], *, repeatable: bool = False, key: str = ""
    ) -> Any:
        """Have something done; tried again by itself only if that does no harm."""
        headers = {"Idempotency-Key": key} if key else {}
        answer = self.ask("POST", path, json=body, headers=headers, repeatable=repeatable)
        return read_json(answer) if answer.content else {}

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """Everything of a list, page by page."""
        next_page: str | None = path
        told: dict[str, Any] | None = {"limit": PAGE, **query}
        while next_page:
            answer = self.ask("GET", next_page, params=told, repeatable=True)
            yield from read_json(answer)
            next_page, told = answer.links.get("next", {}).get("url"), None

    def ask(self, method: str, path: str, *, repeatable: bool = False, **more: Any) -> Any:
        """Send a request as the person who is logged in; gives the answer, or raises."""
        kept = current()
        answer = self.send(method, path, token=kept.access, repeatable=repeatable, **more)
        if answer.status_code == UNAUTHORISED and kept.refresh:
            kept = renewed(instead_of=kept.access)
            answer = self.send(method, path, token=kept.access, repeatable=repeatable, **more)
        if _wants_password(answer):
            from essaim.cli.login import log_in_again

            if log_in_again(self):
                again = current().access
                answer = self.send(method, path, token=again, repeatable=repeatable, **more)
        return checked(answer)

    @contextmanager
    def stream(self, path: str, headers: dict[str, str], **query: Any) -> Iterator[httpx.Response]:
        """An answer that is read as it comes."""
        kept = current()
        with self._translated(), contextlib.ExitStack() as stack:
            answer = stack.enter_context(self._open(path, headers, kept, query))
            if answer.status_code == UNAUTHORISED and kept.refresh:
                stack.close()
                kept = renewed(instead_of=kept.access)
                answer = stack.enter_context(self._open(path, headers, kept, query))
            if answer.is_error:
                answer.read()
            yield checked(answer)

    def _open(
        self, path: str, headers: dict[str, str], kept: Kept, query: dict[str, Any]
    ) -> AbstractContextManager[httpx.Response]:
        import httpx

        told = {**headers, "Authorization": f"Bearer {kept.access}"}
        # Longer than the time between two signs of life.
        within = httpx.Timeout(60.0, connect=5.0)
        return self._http.stream("GET", path, headers=told, params=query, timeout=within)

    def send(
        self, method: str, path: str, *, token: str = "", repeatable: bool = False, **more: Any
    ) -> httpx.Response:
        """Send a request once, or until it is answered if it may be repeated.

        What no server has seen is safe to send a second time: no connection was made, or the
        proxy had no server to pass it to. Both happen while a proxy reloads its configuration.
        """
        import random

        import httpx

        headers = dict(more.pop("headers", {}))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        pauses = PAUSES if repeatable else PAUSES[:1]
        for pause in (*pauses, None):
            try:
                with self._translated():
                    answer = self._http.request(method, path, headers=headers, **more)
                unsent = answer.status_code == BUSY and not answer.content
                if answer.status_code != BUSY or pause is None or not (repeatable or unsent):
                    return answer
            except UnreachableError as error:
                unsent = isinstance(error.__cause__, httpx.ConnectError)
                if pause is None or not (repeatable or unsent):
                    raise
            # Spread out: a room full of people must not come back in the same moment.
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        raise AssertionError(path)  # the last try returns or raises

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except (httpx.TransportError, httpx.DecodingError) as error:
            reason = str(error) or "the connection ended"
            raise UnreachableError(
                said("server.away", server=self.server, reason=reason), hint=said("server.look")
            ) from error
        except httpx.InvalidURL as error:
            raise _no_server(self.server) from error


# -- sessions ---------------------------------------------------------------------------------


@contextmanager
def connected() -> Iterator[Client]:
    """The server somebody is logged in on, for one command."""
    client = Client(current(refresh=False))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def anonymous(kept: Kept) -> Iterator[Client]:
    """A server, before anybody is logged in."""
    client = Client(kept)
    try:
        yield client
    finally:
        client.close()


def current(*, refresh: bool = True) -> Kept:
    """The session, with an access token that will do; LoginError when there is none.

    A program has an API token in ESSAIM_TOKEN, which counts more.
    """
    token = os.environ.get("ESSAIM_TOKEN", "")
    if token:
        return dataclasses.replace(chosen("", insecure=False, ca=""), access=token)
    kept = session.read()
    if kept is None or not kept.refresh:
        raise LoginError(said("login.none"), hint=_login(kept))
    if not refresh or kept.fresh(time.time()):
        return kept
    return renewed(instead_of=kept.access)


def renewed(*, instead_of: str) -> Kept:
    """Get the next tokens, once, however many commands ask for them at the same time."""
    with session.locked():
        kept = session.read()
        if kept is None or not kept.refresh:
            raise LoginError(said("login.over"), hint=_login(kept))
        if kept.access != instead_of and kept.fresh(time.time()):
            return kept  # another command was quicker
        with anonymous(kept) as client:
            answer = client.send(
                "POST", "/api/refresh", json={"refresh": kept.refresh}, timeout=REFRESH_WITHIN
            )
        if answer.status_code == UNAUTHORISED:
            session.write(dataclasses.replace(kept, access="", refresh="", expires_at=0.0))
            raise LoginError(said("login.over"), hint=_login(kept))
        following = taken(kept, read_json(checked(answer)))
        session.write(following)
        return following


def taken(kept: Kept, tokens: dict[str, Any]) -> Kept:
    """A session as it goes on with new tokens."""
    try:
        return dataclasses.replace(
            kept,
            access=str(tokens["access"]),
            refresh=str(tokens["refresh"]),
            expires_at=time.time() + float(tokens["expires_in"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _no_server(kept.server) from error


def _wants_password(answer: httpx.Response) -> bool:
    """Whether the session is too old for what was asked."""
    if answer.status_code != FORBIDDEN:
        return False
    try:
        return bool(answer.json()["code"] == errors.ReauthenticateError.code)
    except (ValueError, TypeError, KeyError):
        return False


def _login(kept: Kept | None) -> str:
    if kept is None or not kept.name:
        return said("login.how")
    return f"essaim login {kept.name}"


def chosen(server: str, *, insecure: bool, ca: str) -> Kept:
    """The server to speak to: as said, as in ESSAIM_SERVER, as last time, or on this computer."""
    before = session.read()
    told = server or os.environ.get("ESSAIM_SERVER", "")
    address = (told or (before.server if before else HERE)).rstrip("/")
    # What was allowed for one server is allowed for that one only.
    same = before is not None and before.server == address
    kept = Kept(
        server=address,
        insecure=insecure or (same and before is not None and before.insecure),
        ca=os.path.abspath(ca) if ca else (before.ca if same and before else ""),  # noqa: PTH100
    )
    check_address(address, insecure=kept.insecure)
    return kept


# -- addresses and answers ----------------------------------------------------------------------


def check_address(server: str, *, insecure: bool) -> None:
    """Refuse what is no server, and what would carry passwords where others can listen."""
    try:
        url = urlsplit(server)
        url.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise _no_server(server) from error
    if url.scheme not in {"http", "https"} or not url.hostname or url.username:
        raise _no_server(server)
    if url.scheme == "http" and not insecure and not is_loopback(url.hostname):
        raise RejectedError(said("server.clear", server=server), hint=said("server.clear_hint"))


def _no_server(server: str) -> EssaimError:
    return errors.UnknownError(
        said("server.none", server=server), hint="https://essaim.example.org"
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this very computer."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _trust(ca: str) -> ssl.SSLContext | bool:
    if not ca:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise errors.SetupError(
            f"{ca} holds no certificates: {error}", hint="log in again with another --ca"
        ) from error


def checked(answer: httpx.Response) -> httpx.Response:
    """An answer that is no problem; otherwise the error the server meant."""
    if answer.is_success:
        return answer
    try:
        problem = answer.json()
        code, what = str(problem["code"]), str(problem["detail"])
    except (ValueError, TypeError, KeyError):
        raise _odd(answer) from None
    hint = str(problem.get("hint") or "")
    if answer.status_code == TOO_MANY:
        wait = answer.headers.get("Retry-After", "")
        hint = hint or said("server.wait", seconds=wait or "60")
    ours = in_their_language(what)
    if code != "invalid":  # whose problems are a line each
        ours = one(ours, spoken())  # of a server that knows sentences we do not
    if spoken() != "en" and ours == what and problem.get("title"):
        ours = f"{problem['title']} : {what}"
    raise _error(answer.status_code, code, ours, one(in_their_language(hint), spoken()))


def read_json(answer: httpx.Response) -> Any:
    """What an answer says; UnreachableError when it is no server of ours that speaks."""
    try:
        return answer.json()
    except ValueError as error:
        raise _odd(answer) from error


def _odd(answer: httpx.Response) -> UnreachableError:
    # A portal that wants to be clicked, a proxy without its server, a redirection.
    status = f"{answer.status_code} {answer.reason_phrase}".strip()
    to = answer.headers.get("Location", "")
    return UnreachableError(
        said("server.odd", server=f"{answer.url.scheme}://{answer.url.netloc.decode()}")
        + f" ({status}{' → ' + to if to else ''})",
        hint=said("server.look"),
    )


def _error(status: int, code: str, what: str, hint: str) -> EssaimError:
    """The error of the model that has this code."""
    known = {kind.code: kind for kind in _kinds(EssaimError)}
    kind = known.get(code)
    if code == "invalid" or kind is None:
        kind = errors.UnknownError if code == "invalid" else RejectedError
        kind = TransientError if status in {TOO_MANY, BUSY} else kind
        kind = type(kind.__name__, (kind,), {"code": code})
    return kind(what, hint=hint)


def _kinds(kind: type[EssaimError]) -> Iterator[type[EssaimError]]:
    for each in kind.__subclasses__():
        if not each.__module__.startswith("essaim.model"):
            continue
        yield each
        yield from _kinds(each)
