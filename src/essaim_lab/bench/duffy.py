"""CentOS Duffy, the nearest peer: its server on PostgreSQL and Redis, its SSH made free.

`peer()` runs this file's own program in a network and a mount namespace where /usr/bin/ssh is
/bin/true: nothing can leave, and preparing a node costs it a process that ends at once.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim_lab import computer
from essaim_lab.bench import processes, services
from essaim_lab.bench.load import Answer, Client, Tally, closed_loop
from essaim_lab.bench.rows import CannotRunError
from essaim_lab.bench.timing import timed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSION = "3.4.0"
WANTED = f"duffy[app,admin,database,tasks,client,postgresql,sqlite]=={VERSION}"
POOL = "bench"
CREATED = 201

#: All of it ends with the first of these, however that ends.
_APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_INSIDE = 'ip link set lo up && mount --bind /bin/true /usr/bin/ssh && exec "$@"'

#: Duffy's own command; with --plain, keys are compared as they are instead of through bcrypt.
_SERVE = """
import sys
if sys.argv[1] == "plain":
    from duffy.database.model.tenant import Tenant
    Tenant.validate_api_key = lambda self, key: str(key) == self._api_key
from duffy.cli import cli
cli(sys.argv[2:])
"""
_SEED = """
import json, sys
from duffy.configuration import read_configuration
read_configuration(sys.argv[1], clear=True, validate=True)
from duffy import database
from duffy.database.setup import setup_db_schema
from duffy.database.model import Node, Tenant
import bcrypt
setup_db_schema()
database.init_sync_model()
asked = json.loads(sys.argv[2])
with database.sync_session_maker() as session:
    for name, key in asked["tenants"].items():
        tenant = Tenant(name=name, ssh_key="ssh-ed25519 AAAA me", node_quota=100000)
        if asked["plain"]:
            tenant._api_key = key
        else:
            tenant.api_key = key
        session.add(tenant)
    for n in range(asked["nodes"]):
        address = f"198.18.{n // 250}.{n % 250 + 1}"
        session.add(Node(hostname=f"n{n}", ipaddr=address, state="ready", pool=asked["pool"]))
    session.commit()
"""
#: Doubles are nodes that more than one session has.
_DOUBLES = (
    "SELECT count(*) FROM "
    "(SELECT node_id FROM sessions_nodes GROUP BY node_id HAVING count(*) > 1) AS twice"
)


def install(cache: Path) -> Path:
    """Give the Python of an environment with Duffy in it, made when it is not there."""
    folder = cache / "bench" / f"duffy-{VERSION}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    timed([sys.executable, "-m", "venv", "--clear", str(folder)], within=300).require()
    timed([python, "-m", "pip", "install", "--quiet", WANTED], within=1200).require()
    (folder / "complete").touch()
    return python


def peer(
    cache: Path, *, nodes: int, clients: Sequence[int], seconds: float, plain: bool
) -> list[dict[str, Any]]:
    """Measure Duffy with so many clients each; CannotRunError says why it cannot be had."""
    if os.geteuid() != 0:
        raise CannotRunError("needs root for its namespaces")
    for program, package in (("postgres", "postgresql"), ("redis-server", "redis-server")):
        services.find(program, package)
    asked = {
        "python": str(install(cache)),
        "nodes": nodes,
        "clients": list(clients),
        "seconds": seconds,
        "plain": plain,
    }
    measuring = [sys.executable, "-m", "essaim_lab.bench.duffy", json.dumps(asked)]
    command = [*_APART, "sh", "-c", _INSIDE, "sh", *measuring]
    longest = 300 + len(clients) * (seconds + 240)
    done = timed(command, within=longest).require()
    found: list[dict[str, Any]] = json.loads(done.out.splitlines()[-1])
    return found


def main(words: Sequence[str]) -> int:
    """Measure, inside the namespaces; prints one line of JSON."""
    asked = json.loads(words[0])
    # Stopped from outside, the servers below end before this does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with services.postgresql() as where, services.redis() as broker:
        found = [_round(asked, where, broker, count) for count in asked["clients"]]
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _round(asked: dict[str, Any], where: str, broker: int, clients: int) -> dict[str, Any]:
    plain = asked["plain"]
    tenants = {f"tenant-{n}": str(uuid.uuid4()) for n in range(clients)}
    database = services.new_database(where, f"duffy_{clients}_{'plain' if plain else 'hashed'}")
    with tempfile.TemporaryDirectory(prefix="essaim-bench-") as name:
        folder = Path(name)
        config = folder / "duffy.yaml"
        config.write_text(json.dumps(_config(database, broker)))
        seed = {"tenants": tenants, "plain": plain, "nodes": asked["nodes"], "pool": POOL}
        command = [asked["python"], "-c", _SEED, config, json.dumps(seed)]
        timed(command, environ=_own(), within=300).require()
        with _serving(asked["python"], config, folder, plain=plain) as (port, pid):
            renters = [Renter(port, name, key) for name, key in tenants.items()]
            before = processes.cpu(pid)
            tally = closed_loop(
                renters,
                seconds=asked["seconds"],
                most=asked["nodes"],
                granted=lambda answer: answer.status == CREATED,
            )
            spent = processes.cpu(pid) - before
        doubles = _count(asked["python"], database, _DOUBLES)
    return {**tally.document(spent), "clients": clients, "doubles": doubles + _twice(tally)}


class Renter:
    """Asks Duffy for one node after another."""

    def __init__(self, port: int, name: str, key: str) -> None:
        self._client = Client(port)
        token = base64.b64encode(f"{name}:{key}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}

    async def ask(self) -> Answer:
        """Ask for a session with one node."""
        body = {"nodes_specs": [{"pool": POOL, "quantity": 1}]}
        return await self._client.post("/api/v1/sessions", body, self._headers)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.close()


@contextmanager
def _serving(python: str, config: Path, folder: Path, *, plain: bool) -> Iterator[tuple[int, int]]:
    port = computer.free_port()
    how = "plain" if plain else "shipped"
    command = [python, "-c", _SERVE, how, "-c", str(config), "serve", "-p", str(port)]
    ready = lambda: services.answers(port)  # noqa: E731 - one word
    with services.running(command, ready=ready, log=folder / "log", environ=_own()) as process:
        yield port, process.pid


def _own() -> dict[str, str]:
    """Leave out what would lead it to packages other than its own."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def _config(database: str, broker: int) -> dict[str, Any]:
    redis = f"redis://127.0.0.1:{broker}"
    return {
        "app": {"loglevel": "warning", "host": "127.0.0.1"},
        "tasks": {
            "celery": {"broker_url": f"{redis}/0", "result_backend": f"{redis}/1"},
            "locking": {"url": f"{redis}/2"},
        },
        "database": {
            "sqlalchemy": {
                "sync_url": f"postgresql+psycopg2://{database}",
                "async_url": f"postgresql+asyncpg://{database}",
            }
        },
        "defaults": {
            "session-lifetime": "6h",
            "session-lifetime-max": "12h",
            "node-quota": 100_000,
        },
        "nodepools": {
            "concrete": {
                # Its worker rests, which is in its favour: the playbook is never played.
                POOL: {
                    "fill-level": 1,
                    "mechanism": {
                        "type": "ansible",
                        "ansible": {"provision": {"playbook": "never.yml"}},
                    },
                }
            }
        },
    }


def _twice(tally: Tally) -> int:
    """Nodes that two answers named."""
    ids = [node["id"] for body in tally.granted for node in body["session"]["nodes"]]
    return len(ids) - len(set(ids))


def _count(python: str, database: str, query: str) -> int:
    program = (
        "import sys, psycopg2\n"
        "with psycopg2.connect(sys.argv[1]) as c, c.cursor() as r:\n"
        "    r.execute(sys.argv[2]); print(r.fetchone()[0])\n"
    )
    words = [python, "-c", program, f"postgresql://{database}", query]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
