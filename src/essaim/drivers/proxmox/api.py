"""Calls to a cluster: TLS that is always verified, connections that are kept, errors that are ours.

proxmoxer says what is where; the sessions below it are our own, because a certificate may be known
by its fingerprint, a ticket is renewed in one place, and no environment is read for each call.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import requests
from proxmoxer.backends.https import JsonSerializer  # type: ignore[import-untyped]
from proxmoxer.core import (  # type: ignore[import-untyped]
    ProxmoxResource,
    ResourceException,
)
from typing_extensions import override

from essaim.drivers.proxmox.refusals import Refusal, missing_privilege, named_by, sort
from essaim.drivers.proxmox.settings import Settings, secret_of
from essaim.drivers.proxmox.tls import untrusted, verifying
from essaim.model.errors import EssaimError, RejectedError, TransientError

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter

#: Seconds to connect, and for an answer: Proxmox VE waits up to 10 s for a lock before it answers.
TIMEOUT = (5.0, 30.0)
#: Seconds after which a ticket, which lasts two hours, is renewed.
_RENEW = 3600.0
_UNAUTHORISED, _NO_ROUTE = 401, 595
#: Seconds until a question is asked again whose answer got lost on the way.
_AGAIN = (0.1, 0.5)
#: Seconds for which a server that did not answer is asked last.
_AWAY = 30.0
#: The code of a call that may have been carried out although nothing was heard of it.
BROKEN_OFF = 1

# It prints whole requests, keys included.
logging.getLogger("proxmoxer").setLevel(logging.WARNING)


class ApiError(Exception):
    """The cluster refused; `kind` says what is to be done about it."""

    def __init__(self, kind: Refusal, text: str, *, code: int = 0, storage: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.code = code
        self.storage = storage  #: where a disk was to be put

    def ours(self, site: str, what: str) -> EssaimError:
        """The same as an error of Essaim."""
        said = f"{site}: {what}: {self.text}"
        if self.kind is Refusal.DENIED:
            return RejectedError(said, hint=_denied(site, self.code, self.text))
        if self.kind in (Refusal.LOST, Refusal.LOCKED, Refusal.GONE):
            return TransientError(said, hint="see the state of the cluster: pvecm status")
        return RejectedError(said, hint=self._advice(site))

    def _advice(self, site: str) -> str:
        if self.kind is Refusal.FULL:
            which = f"storage {self.storage}" if self.storage else "the storage"
            return f"{which} is full: make room there, or name another: storage: in the site file"
        if who := named_by(self.text):
            return f"{who} names it; essaim doctor --site {site} says what there is"
        return ""


def _denied(site: str, code: int, text: str) -> str:
    if code == _UNAUTHORISED:
        return "see whether the token exists, is not expired, and its secret is the right one"
    doctor = f"essaim doctor --site {site}"
    privilege, path = missing_privilege(text)
    if not privilege:
        return f"{doctor} says what is missing"
    given = privilege.replace("|", " or ")
    return f"give the account a role with {given} on {path}; {doctor} prints the line to type"


class _Auth(requests.auth.AuthBase):
    """Shows a token with each request, or a ticket that is renewed."""

    def __init__(self, settings: Settings, base: str, session: requests.Session) -> None:
        self._settings = settings
        self._base = base
        self._session = session
        self._until = 0.0
        self._lock = threading.Lock()
        self._ticket = self._csrf = ""
        if settings.token:
            self._token = f"PVEAPIToken={settings.token}={secret_of(settings)}"

    @override
    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._settings.token:
            request.headers["Authorization"] = self._token
            return request
        with self._lock:
            if time.monotonic() > self._until:
                self._log_in()
        request.headers["Cookie"] = f"PVEAuthCookie={self._ticket}"
        if request.method != "GET":
            request.headers["CSRFPreventionToken"] = self._csrf
        return request

    def _log_in(self) -> None:
        given = {"username": self._settings.user, "password": secret_of(self._settings)}
        answer = self._session.post(f"{self._base}/access/ticket", data=given, auth=_nobody)
        if not answer.ok:
            raise ResourceException(answer.status_code, answer.reason, answer.reason or "")
        data = answer.json()["data"]
        self._ticket, self._csrf = data["ticket"], data["CSRFPreventionToken"]
        self._until = time.monotonic() + _RENEW


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


class _Session(requests.Session):
    """Reads no environment, keeps as many connections as threads ask, and never waits for ever."""

    def __init__(
        self, settings: Settings, base: str, adapter: HTTPAdapter, timeout: tuple[float, float]
    ) -> None:
        super().__init__()
        self.timeout = timeout
        self.trust_env = False
        self.verify = not settings.fingerprint  # which is compared instead
        self.mount("https://", adapter)
        self.auth = _Auth(settings, base, self)

    @override
    def request(self, method: Any, url: Any, **given: Any) -> requests.Response:  # type: ignore[override]
        return super().request(method, url, **{"timeout": self.timeout, **given})


class Api:
    """A cluster's API.  Any number of threads may call at once; each call has a connection."""

    def __init__(self, settings: Settings, *, timeout: tuple[float, float] = TIMEOUT) -> None:
        self.settings = settings
        self.timeout = timeout  #: seconds to connect, and for an answer
        self.calls = 0  #: how many were made, for whoever counts
        self._lock = threading.Lock()
        self._doors: dict[str, ProxmoxResource] = {}
        self._away: dict[str, float] = {}

    def get(self, path: str, /, **params: Any) -> Any:
        """Ask; ApiError when it is refused.  An answer that is none is asked for again."""
        for pause in _AGAIN:
            try:
                return self._call("GET", path, params)
            except ApiError as error:
                # To ask twice changes nothing; a node that is gone is still gone then.
                if error.kind is not Refusal.LOST or error.code in (0, _NO_ROUTE):
                    raise
            time.sleep(pause)
        return self._call("GET", path, params)

    def ask_once(self, path: str) -> Any:
        """Ask each server once at most; for who would rather hear that none answers."""
        return self._call("GET", path, {})

    def post(self, path: str, **data: Any) -> Any:
        """Have something done."""
        return self._call("POST", path, data)

    def put(self, path: str, **data: Any) -> Any:
        """Change something."""
        return self._call("PUT", path, data)

    def delete(self, path: str, **params: Any) -> Any:
        """Remove something."""
        return self._call("DELETE", path, params)

    def close(self) -> None:
        """Let go of all connections; another call would make new ones."""
        with self._lock:
            doors, self._doors = self._doors, {}
        for door in doors.values():
            door._store["session"].close()  # noqa: SLF001 - ours: see `_door`

    def _call(self, method: str, path: str, given: dict[str, Any]) -> Any:
        last: ApiError | None = None
        for url in self._servers():
            try:
                return self._ask(url, method, path, given)
            except ApiError as error:
                # Only a server that was never reached leaves no doubt that nothing was done.
                if error.kind is not Refusal.LOST or error.code:
                    raise
                self._away[url] = time.monotonic()
                last = error
        raise last or ApiError(Refusal.LOST, "no server is named")

    def _servers(self) -> list[str]:
        now = time.monotonic()
        urls = self.settings.urls
        return sorted(urls, key=lambda url: now - self._away.get(url, -_AWAY) < _AWAY)

    def _ask(self, url: str, method: str, path: str, given: dict[str, Any]) -> Any:
        self.calls += 1
        key = {"params": given} if method in ("GET", "DELETE") else {"data": given}
        try:
            # Its own verbs would put each word of the path together anew.
            return self._door(url)(path)._request(method, **key)  # noqa: SLF001 - see above
        except ResourceException as error:
            raise _refusal(error) from error
        except requests.exceptions.ConnectTimeout as error:
            raise ApiError(Refusal.LOST, f"{url} does not answer") from error
        except requests.exceptions.SSLError as error:
            raise untrusted(url, error) from error
        except requests.exceptions.ConnectionError as error:
            raise _unconnected(url, error) from error
        except requests.exceptions.Timeout as error:
            what = f"{url}: no answer to {method} {path} in {self.timeout[1]:g} s"
            raise ApiError(Refusal.LOST, what, code=BROKEN_OFF) from error
        except requests.exceptions.RequestException as error:
            raise ApiError(Refusal.LOST, f"{url}: {error}", code=BROKEN_OFF) from error

    def _door(self, url: str) -> ProxmoxResource:
        with self._lock:
            if url not in self._doors:
                base = f"{url}/api2/json"
                its = self.settings
                session = _Session(its, base, verifying(its), self.timeout)
                self._doors[url] = ProxmoxResource(
                    base_url=base, session=session, serializer=JsonSerializer()
                )
            return self._doors[url]


def _refusal(error: ResourceException) -> ApiError:
    text = str(error.content or "").removesuffix(f" - {error.errors}").strip()
    if error.errors:
        wrong = error.errors.items() if isinstance(error.errors, dict) else [("", error.errors)]
        said = "; ".join(f"{key}: {str(why).strip()}" if key else str(why) for key, why in wrong)
        text = f"{text} {said}".strip()
    text = text or str(error.status_message or f"HTTP {error.status_code}")
    return ApiError(sort(error.status_code, text), text.strip(), code=error.status_code)


def _unconnected(url: str, error: requests.exceptions.ConnectionError) -> ApiError:
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    # A connection that broke may have carried the request: the code says there is doubt.
    code = BROKEN_OFF if reason is None else 0
    return ApiError(Refusal.LOST, f"{url} cannot be reached: {plain(reason or error)}", code=code)


def plain(error: BaseException) -> str:
    """Why a connection failed, as the operating system says it, without names of classes."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror.lower()
        found = found.__cause__ or found.__context__
    return str(error)
