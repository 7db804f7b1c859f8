"""A real Caddy with the file it is deployed with, before API processes of this computer."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from essaim_lab import computer
from essaim_lab.bench import services
from essaim_lab.bench.control import CHECKOUT
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OK = 200


@dataclass(frozen=True, slots=True)
class Front:
    """Where Caddy answers, over TLS, and whom to trust."""

    port: int
    pid: int
    tls: ssl.SSLContext


@contextmanager
def caddy(upstreams: Sequence[int]) -> Iterator[Front]:
    """Run Caddy before these ports until the end; it is there when a request has got through."""
    program = services.find("caddy", "caddy")
    deployed = CHECKOUT / "deploy" / "Caddyfile"
    if not deployed.is_file():
        raise CannotRunError(f"{deployed} is not there: run this from a checkout")
    with tempfile.TemporaryDirectory(prefix="essaim-bench-") as name:
        folder, port = Path(name), computer.free_port()
        # Port 80 is the computer's own; only what redirects to TLS would need it.
        own = deployed.read_text().replace("{\n", "{\n\tauto_https disable_redirects\n", 1)
        (folder / "Caddyfile").write_text(own)
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "XDG_DATA_HOME": f"{name}/data",
            "XDG_CONFIG_HOME": f"{name}/config",
            "ESSAIM_SITE": f"https://localhost:{port}",
            "ESSAIM_UPSTREAMS": " ".join(f"127.0.0.1:{each}" for each in upstreams),
            "ESSAIM_CADDY_ADMIN": f"localhost:{computer.free_port()}",
        }
        root = folder / "data" / "caddy/pki/authorities/local/root.crt"
        with services.running(
            [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")],
            ready=lambda: _answers(port, root),
            log=folder / "log",
            environ=environ,
        ) as process:
            yield Front(port, process.pid, ssl.create_default_context(cafile=str(root)))


def _answers(port: int, root: Path) -> bool:
    import httpx  # noqa: PLC0415 - heavy

    try:
        trust = ssl.create_default_context(cafile=str(root))
        where = f"https://localhost:{port}/readyz"
        return httpx.get(where, verify=trust, trust_env=False, timeout=10).status_code == OK
    except (httpx.HTTPError, OSError):
        return False
