"""The parts of a control plane, each of which can be started alone, and all of them together.

Each part has threads of its own: none waits because another is busy.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.bootstrap import App

log = logging.getLogger(__name__)

#: Seconds a part has to stop before the process ends without it.
STOP_WITHIN = 30.0
#: Seconds answers under way have when the API stops: streams of events never end by themselves.
ANSWER_WITHIN = 5
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
    ) -> None:
        from essaim.gateway.gateway import Gateway
        from essaim.gateway.plane import PlaneRoutes

        self._app = app
        self.gateway = Gateway(
            PlaneRoutes(app, forwarding=forwarding or app.forwarding),
            host_key=gateway_key_file(app),
            user_key=app.keyring.user_key(),
            host=at[0],
            port=at[1],
            sockets=sockets,
            check_every=CHECK_EVERY,
        )

    def start(self) -> None:
        """Listen; SetupError when the port cannot be had."""
        self._app.lending.dial = self.gateway.dial
        self.gateway.start()

    def stop(self) -> None:
        """End every connection, telling clients why."""
        self.gateway.stop()


class ApiServer:
    """The HTTP API, on sockets that listen already; `gateway` is where agents and clients find it.

    The sockets are closed when it stops.
    """

    def __init__(
        self, app: App, sockets: Sequence[socket.socket], *, gateway: tuple[str, int]
    ) -> None:
        import uvicorn

        from essaim.agent import source
        from essaim.api.app import create_app
        from essaim.api.options import Gateway, Options

        host, port = gateway
        its = Gateway(host=host, port=port, host_key=gateway_public_key(app))
        config = uvicorn.Config(
            create_app(app, Options(gateway=its, agent=source)),
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=ANSWER_WITHIN,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=(list(sockets),), name="essaim-api", daemon=True
        )

    def start(self) -> None:
        """Answer.  Whoever connects before it is ready waits in the sockets' queues."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the answers under way, within a limit."""
        self._server.should_exit = True
        self._thread.join(STOP_WITHIN)
        if self._thread.is_alive():
            self._server.force_exit = True
            log.error("the API is still busy %g s after it was told to stop", STOP_WITHIN)


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
    another address.
    """

    def __init__(
        self,
        app: App,
        *,
        api: Sequence[socket.socket],
        gateway: tuple[str, int],
        gateway_sockets: Sequence[socket.socket] = (),
        told: tuple[str, int] | None = None,
        homes_every: float = 60.0,
        forwarding: str = "",
    ) -> None:
        self.app = app
        self._doors = GatewayServer(app, gateway, sockets=gateway_sockets, forwarding=forwarding)
        self.gateway = self._doors.gateway
        self.gateway_key = gateway_public_key(app)
        self._controllers = Controllers(app, homes_every=homes_every)
        self._api, self._host, self._told = api, gateway[0], told
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        """Listen and begin to work; SetupError when a port cannot be had."""
        with contextlib.ExitStack() as begun:
            _start(self._doors, begun)
            # Only now: a port that was left to the system is known when it is had.
            told = self._told or (self._host, self.gateway.port)
            _start(ApiServer(self.app, self._api, gateway=told), begun)
            _start(self._controllers, begun)
            self._running = begun.pop_all()

    def stop(self) -> None:
        """End all of it; what is under way is handed back to the journal."""
        self._running.close()


def _start(part: Part, begun: contextlib.ExitStack) -> None:
    part.start()
    begun.callback(part.stop)


def gateway_public_key(app: App) -> str:
    """The key the gateway shows, as in `known_hosts`; made if there is none yet."""
    from essaim.gateway.gateway import load_host_key

    return load_host_key(gateway_key_file(app)).export_public_key().decode().strip()


def gateway_key_file(app: App) -> Path:
    """Where the gateway's host key is kept."""
    return app.home / "keys" / "gateway"


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
