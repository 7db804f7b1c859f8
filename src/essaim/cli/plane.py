"""One process of a control plane: API, controllers, courier and SSH gateway together."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from essaim.bootstrap import App


class Plane:
    """Runs in an event loop of its own thread, between `start` and `stop`."""

    def __init__(
        self,
        app: App,
        *,
        api: Sequence[socket.socket],
        gateway: tuple[str, int],
        gateway_sockets: Sequence[socket.socket] = (),
        told: tuple[str, int] | None = None,
        homes_every: float = 60.0,
    ) -> None:
        from essaim.agent import source
        from essaim.api.app import create_app
        from essaim.api.options import Gateway as Address
        from essaim.api.options import Options
        from essaim.controllers.health import Health
        from essaim.controllers.leases import Expiry, Homes, Queue
        from essaim.controllers.loops import Loops
        from essaim.gateway.gateway import Gateway, load_host_key
        from essaim.gateway.plane import PlaneRoutes

        self.app = app
        self._api = api
        key = app.home / "keys" / "gateway"
        self.gateway_key = load_host_key(key).export_public_key().decode().strip()
        self.gateway = Gateway(
            PlaneRoutes(app),
            host_key=key,
            user_key=app.keyring.user_key(),
            host=gateway[0],
            port=gateway[1],
            sockets=gateway_sockets,
            check_every=1.0,
        )
        host, port = told or gateway  #: where agents and clients find the gateway
        options = Options(
            gateway=Address(host=host, port=port, host_key=self.gateway_key), agent=source
        )
        self._http = create_app(app, options)
        self._loops = Loops([Health(app), Expiry(app), Queue(app), Homes(app, every=homes_every)])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="essaim-plane", daemon=True
        )
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen and begin to work; SetupError when a port cannot be had."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        self.app.lending.dial = self.gateway.dial
        self._loops.start()
        self.app.courier.wake()

    async def _start(self) -> None:
        import uvicorn

        await self.gateway.start()
        config = uvicorn.Config(
            self._http,
            log_level="warning",
            lifespan="off",
            access_log=False,
            timeout_graceful_shutdown=5,  # streams of events would never end by themselves
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=list(self._api)))

    def stop(self) -> None:
        """End all of it; what is under way is handed back to the journal."""
        self._loops.stop()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        await self.gateway.stop()


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
