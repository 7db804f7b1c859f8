"""The parts of a control plane, each of which can be started alone, and all of them together.

Each part has threads of its own: none waits because another is busy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from essaim.bootstrap import App

log = logging.getLogger(__name__)

#: Seconds a part has to stop before the process ends without it.
STOP_WITHIN = 30.0
#: Seconds answers under way have when the API stops: streams of events never end by themselves.
ANSWER_WITHIN = 5
#: Seconds a connection without a request is kept.
KEEP_ALIVE = 60
#: Seconds after which it is asked again where gateways are.
PLACES_EVERY = 3.0
ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not listened on
#: Seconds between looks at a lease in use: how late a client may be cut off.
CHECK_EVERY = 1.0


class Part(Protocol):
    """Something that runs in the background."""

    def start(self) -> None:
        """Begin; SetupError when that cannot be."""

    def stop(self) -> None:
        """End; returns in any case."""


class GatewayServer:
    """The SSH gateway.  While it runs, this process reaches tunnelled nodes through it."""

    def __init__(
        self,
        app: App,
        at: tuple[str, int],
        *,
        sockets: Sequence[socket.socket] = (),
        forwarding: str = "",
        inner: tuple[str, int] = ("127.0.0.1", 0),
        public: tuple[str, int] = ("", 0),
        linger: float = 0.0,
    ) -> None:
        from essaim.gateway.gateway import Gateway
        from essaim.gateway.mates import PlaneMates
        from essaim.gateway.plane import PlaneRoutes
        from essaim.store.tunnels import Door

        self._app = app
        self._linger = linger
        self.id = f"gateway-{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(4)}"
        door = Door(
            gateway=self.id,
            address=own_address() if inner[0] in ANYWHERE else inner[0],
            port=inner[1],
            public_host=public[0],
            public_port=public[1],
        )
        self.gateway = Gateway(
            PlaneRoutes(app, forwarding=forwarding or app.forwarding, gateway=self.id),
            host_key=app.keyring.gateway_key(),
            login_keys=partial(app.keyring.paths, "lease"),
            host=at[0],
            port=at[1],
            sockets=sockets,
            check_every=CHECK_EVERY,
            mates=PlaneMates(app.ways, door),
            inner=inner,
        )

    def start(self) -> None:
        """Listen; SetupError when the port cannot be had."""
        self.gateway.start()
        self._app.ways.here = self.gateway

    def stop(self) -> None:
        """End every connection, telling clients why; those who are here may stay for a while."""
        self.gateway.stop(linger=self._linger)
        self._app.ways.here = None


def _authority(path: str) -> str:
    """Read the certificate that machines fetch to join; see `nodes enrol`."""
    try:
        return Path(path).read_text(encoding="ascii") if path else ""
    except (OSError, ValueError) as error:
        raise SetupError(
            f"ESSAIM_CA={path} is not a PEM file that can be read",
            hint="name the certificate of the authority that the TLS proxy uses",
        ) from error


def _always_signed(said: str) -> bool:
    """Whether machines that never joined sign with their host key too."""
    if said not in {"known", "always"}:
        raise SetupError(
            f"ESSAIM_HOST_KEY_PROOF={said}: unknown",
            hint="known (machines that joined before sign), or always",
        )
    return said == "always"


class ApiServer:
    """The HTTP API, on sockets that listen already; `gateway` is where agents and clients find it.

    The sockets are closed when it stops.
    """

    def __init__(
        self,
        app: App,
        sockets: Sequence[socket.socket],
        *,
        gateway: tuple[str, int],
        url: str = "",
        drain: float = 0.0,
    ) -> None:
        import uvicorn

        from essaim.agent import source
        from essaim.api.app import create_app
        from essaim.api.options import Gateway, Options

        _ = app.breached  # a list that is named and not there is said now, not at a sign-up
        host, port = gateway
        its = Gateway(host=host, port=port, ask_key=HostKey(app))
        self._drain = drain
        self._leaving = threading.Event()
        options = Options(
            gateway=its,
            public_url=url,
            agent=source,
            gateways=Places(app),
            leaving=self._leaving.is_set,
            together=True,
            trusted_proxies=app.trusted_proxies,
            authority=_authority(os.environ.get("ESSAIM_CA") or ""),
            always_signed=_always_signed(os.environ.get("ESSAIM_HOST_KEY_PROOF") or "known"),
        )
        config = uvicorn.Config(
            create_app(app, options),
            log_level="warning",
            lifespan="off",
            proxy_headers=False,  # `api.proxies` knows whom to believe
            access_log=False,
            timeout_graceful_shutdown=ANSWER_WITHIN,
            # Longer than a front door keeps its connections: whoever sends on one that is closed at
            # that very moment has lost a request that may not be sent twice.
            timeout_keep_alive=KEEP_ALIVE,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=(list(sockets),), name="essaim-api", daemon=True
        )

    def start(self) -> None:
        """Answer.  Whoever connects before it is ready waits in the sockets' queues."""
        self._thread.start()

    def stop(self) -> None:
        """Say that it is not ready, for a moment; then finish the answers under way."""
        self._leaving.set()
        if self._drain:
            # Whoever balances the load has to notice before connections are refused.
            time.sleep(self._drain)
        self._server.should_exit = True
        self._thread.join(STOP_WITHIN)
        if self._thread.is_alive():
            log.error("the API is still busy %g s after it was told to stop", STOP_WITHIN)


class HostKey:
    """The key that gateways show, once one of them has said it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known = ""

    def __call__(self) -> str:
        """Give it as in `known_hosts`; nothing before that."""
        from essaim.usecases.keys import public_keys

        if not self._known:
            self._known = next(iter(public_keys(self._app, "gateway")), "")
        return self._known


class Places:
    """Where the gateways are that agents may choose from, as of some seconds ago."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._again_at = 0.0
        self._known: list[tuple[str, int]] = []

    def __call__(self) -> list[tuple[str, int]]:
        """Give host and port of each gateway that has an address of its own."""
        # Heartbeats come by the thousand: only one of them asks.
        if time.monotonic() >= self._again_at and self._lock.acquire(blocking=False):
            try:
                doors = self._app.ways.tunnels.alive()
                self._known = [(d.public_host, d.public_port) for d in doors if d.public_host]
                self._again_at = time.monotonic() + PLACES_EVERY
            finally:
                self._lock.release()
        return self._known


class Controllers:
    """What keeps the fleet as it should be, and carries the runs that are due."""

    def __init__(self, app: App, *, homes_every: float = 60.0) -> None:
        from essaim.controllers.loops import Loops
        from essaim.controllers.table import controllers

        self._app = app
        self._loops = Loops(controllers(app, homes_every=homes_every))

    def start(self) -> None:
        """Begin, with what an earlier process of this host left first."""
        self._loops.start()
        if not self._app.broker:
            self._app.engine.release_dead()
        self._app.courier.wake()

    def stop(self) -> None:
        """Let each finish its look.  Runs under way are the courier's, which the app closes."""
        ending = threading.Thread(target=self._loops.stop, name="essaim-stop", daemon=True)
        ending.start()
        ending.join(STOP_WITHIN)
        if ending.is_alive():
            log.error("a controller is still busy %g s after it was told to stop", STOP_WITHIN)


class Plane:
    """All of it in one process, between `start` and `stop`.

    `gateway` is where the gateway listens, `told` where agents and clients find it if that is
    another address.  `agents` are further sockets of the API, for machines on networks of their
    own, each with where the gateway is for these.
    """

    def __init__(
        self,
        app: App,
        *,
        api: Sequence[socket.socket],
        gateway: tuple[str, int],
        gateway_sockets: Sequence[socket.socket] = (),
        told: tuple[str, int] | None = None,
        url: str = "",
        agents: Sequence[tuple[socket.socket, tuple[str, int]]] = (),
        homes_every: float = 60.0,
        forwarding: str = "",
        inner: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        from essaim.usecases.keys import same_keys

        same_keys(app)
        self.app = app
        self._doors = GatewayServer(
            app, gateway, sockets=gateway_sockets, forwarding=forwarding, inner=inner
        )
        self.gateway = self._doors.gateway
        self.gateway_key = app.keyring.gateway_public_key()
        self._controllers = Controllers(app, homes_every=homes_every)
        self._api, self._host, self._told, self._agents = api, gateway[0], told, agents
        self._url = url
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        """Listen and begin to work; SetupError when a port cannot be had."""
        with contextlib.ExitStack() as begun:
            _start(self._doors, begun)
            # Only now: a port that was left to the system is known when it is had.
            told = self._told or (self._host, self.gateway.port)
            _start(ApiServer(self.app, self._api, gateway=told, url=self._url), begun)
            for listener, place in self._agents:
                _start(ApiServer(self.app, [listener], gateway=place), begun)
            _start(self._controllers, begun)
            self._running = begun.pop_all()

    def stop(self) -> None:
        """End all of it; what is under way is handed back to the journal."""
        self._running.close()


def _start(part: Part, begun: contextlib.ExitStack) -> None:
    part.start()
    begun.callback(part.stop)


def own_address() -> str:
    """The address this computer has on its way out; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def listening(host: str, port: int) -> socket.socket:
    """Take a port now, so that a taken one is said before anything else happens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio only then sends small answers at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"{host} port {port} cannot be had: {error.strerror}", hint="choose another port"
        ) from error
    return listener
