"""Puts people and ready nodes into a control plane's database, many at once."""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING

from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from essaim.store.database import Database

#: What every simulated machine says of itself; its key opens nothing.
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k bench"
BOOT = "6b1f0d5e-6f5c-4a55-9a55-0d7f0f3e9b1c"


def people(database: Database, names: Iterable[str], password: str) -> None:
    """Add members who may rent all there is; `password` is as it is kept."""
    from essaim.model.fleet import Quota  # noqa: PLC0415 - SQLAlchemy is heavy
    from essaim.store.people import People  # noqa: PLC0415

    kept = People(database)
    for name in names:
        kept.add(name, password, quota=Quota(machines=1_000_000, hours=1e9))


def nodes(database: Database, count: int) -> list[str]:
    """Add ready nodes that were heard of just now; gives their credentials."""
    import sqlalchemy as sa  # noqa: PLC0415

    from essaim.model.fleet import NodeState  # noqa: PLC0415
    from essaim.store.database import db_now  # noqa: PLC0415
    from essaim.store.schema import node, pulse  # noqa: PLC0415
    from essaim.usecases.credentials import digest  # noqa: PLC0415

    # As random ids are in a real fleet, but the same each time.
    dice = random.Random(count)  # noqa: S311
    ids = [f"n-{dice.getrandbits(40):010x}" for _ in range(count)]
    credentials = [f"node_{dice.getrandbits(256):064x}" for _ in range(count)]
    machines = [
        {
            "id": key, "name": f"bench-{number}", "site": "", "cores": 2, "memory": 2048,
            "labels": "{}", "address": "192.0.2.1", "port": 22, "host_key": KEY,
            "identity": hashlib.sha256(key.encode()).hexdigest(), "tunnel": False,
            "tunnel_key": "", "agent": "bench", "state": NodeState.READY.value,
            "drained": False, "lease": None, "reason": "", "created_at": 0,
        }
        for number, key in enumerate(ids)
    ]  # fmt: skip
    pulses = [
        {"node": key, "credential": digest(credential), "boot": BOOT, "seq": 0, "load": 0.0}
        for key, credential in zip(ids, credentials, strict=True)
    ]
    seen = {"beat_at": db_now(), "checked_at": db_now(), "failures": 0}

    def body(connection: sa.Connection) -> None:
        connection.execute(sa.insert(node), machines)
        connection.execute(sa.insert(pulse).values(**seen), pulses)

    database.write(body)
    return credentials


def doubles(database: Database, granted: Iterable[str]) -> int:
    """Count nodes that two leases have, and answers whose lease does not hold its own node."""
    import sqlalchemy as sa  # noqa: PLC0415

    from essaim.store.schema import lease, node  # noqa: PLC0415

    kept = sa.select(lease.c.id, lease.c.nodes).where(lease.c.ended_at.is_(None))
    held = sa.select(node.c.id, node.c.lease).where(node.c.lease.is_not(None))
    leases = {key: json.loads(its) for key, its in database.read(lambda c: c.execute(kept).all())}
    holders = {row.id: row.lease for row in database.read(lambda c: c.execute(held).all())}
    if not leases:
        raise CannotRunError("nothing was granted at all")
    given: list[str] = [each for its in leases.values() for each in its]
    wrong = [
        key
        for key in granted
        if len(leases.get(key, [])) != 1 or holders.get(leases[key][0]) != key
    ]
    return len(given) - len(set(given)) + len(wrong)
