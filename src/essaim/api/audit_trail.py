"""Records every change that is asked of the API, before it is answered."""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import secrets
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders

from essaim.model.audit import Entry
from essaim.usecases import audit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from essaim.usecases.services import Services

log = logging.getLogger(__name__)

READING = frozenset({"GET", "HEAD", "OPTIONS"})
#: Asked for all the time, and no act of anybody.
ROUTINE = frozenset({"heartbeat", "refresh"})
#: What a proxy or a client may call a request.
REQUEST = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Entries that are kept in one transaction.
BATCH = 200
REFUSED, FAILED = 400, 500


class Recorder:
    """Keeps the entries of all requests of this process, together those that come together."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: queue.SimpleQueue[tuple[Entry, Future[None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def record(self, entry: Entry) -> Future[None]:
        """Keep an entry; the future is done when it is kept."""
        audit.write_line(entry)
        done: Future[None] = Future()
        self._waiting.put((entry, done))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                self._thread.start()
        return done

    def _run(self) -> None:
        while True:
            some = [self._waiting.get()]
            while len(some) < BATCH and not self._waiting.empty():
                some.append(self._waiting.get())
            try:
                self._services.audit.add([entry for entry, _done in some])
            except Exception as error:  # noqa: BLE001 - whatever it is, they wait for an answer
                for _entry, done in some:
                    done.set_exception(error)
            else:
                for _entry, done in some:
                    done.set_result(None)


class AuditTrail:
    """Records who asked for a change, from where, and what came of it.

    Strangers are recorded only where a route says what they wanted (`request.state.object`), which
    it does once the attempt is counted: nobody can fill the trail by asking.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._recorder = Recorder(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record it before its answer begins."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get("x-request-id", "")
        request = asked if REQUEST.fullmatch(asked) else secrets.token_hex(8)
        told: dict[str, Any] = scope.setdefault("state", {})

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request
                await self._keep(scope, told, request, message["status"])
            await send(message)

        await self._app(scope, receive, watched)

    async def _keep(self, scope: Scope, told: dict[str, Any], request: str, status: int) -> None:
        user, subject = told.get("user"), str(told.get("object") or "")
        action = getattr(scope.get("route"), "name", "")
        if action in ROUTINE or not action or not (user or subject):
            return
        entry = Entry(
            action=action,
            outcome=_outcome(status),
            who=user.id if user else "",
            name=user.name if user else str(told.get("name") or ""),
            address=(scope.get("client") or ("",))[0],
            object=subject or " ".join(map(str, (scope.get("path_params") or {}).values())),
            request=request,
            details={"status": status},
        )
        try:
            await asyncio.wrap_future(self._recorder.record(entry))
        except Exception:  # the act is done: its answer must not be lost as well
            log.exception("not in the audit trail, only in the log: %s", entry)


def _outcome(status: int) -> str:
    return "done" if status < REFUSED else "refused" if status < FAILED else "failed"
