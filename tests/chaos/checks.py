"""The promises, as functions of what was seen: rows of the database, machines, clients' notes.

None of it uses the code that is judged: rows are read as they are.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

Row = Mapping[str, Any]

SERVED = ("granted", "active", "migrating")
UNFINISHED = ("ready", "running", "waiting")


@dataclass(frozen=True)
class Seen:
    """The database at one moment."""

    nodes: Sequence[Row]
    leases: Sequence[Row]
    runs: Sequence[Row] = ()


def read(engine: sa.Engine) -> Seen:
    """Read all of it in one transaction that sees one moment."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:

        def rows(query: str) -> list[Row]:
            return [dict(row._mapping) for row in connection.execute(sa.text(query))]

        nodes = rows("SELECT id, name, state, lease, drained, reason FROM node")
        leases = rows(
            "SELECT id, request, state, nodes, reason, machines, expires_at, ended_at, run"
            " FROM lease"
        )
        runs = rows("SELECT id, workflow, subject, state, note, error, due_at, owner FROM run")
    return Seen(nodes, leases, runs)


def its_nodes(lease: Row) -> list[str]:
    return list(json.loads(lease["nodes"]))


def two_holders(seen: Seen) -> list[str]:
    """No machine belongs to two leases that are served, or to one that does not know it."""
    holders = defaultdict(list)
    for lease in seen.leases:
        if lease["state"] in SERVED:
            for node in its_nodes(lease):
                holders[node].append(lease["id"])
    wrong = [f"{node} has the holders {has}" for node, has in holders.items() if len(has) > 1]
    wrong += [
        f"{node['id']} says {node['lease']}, leases say {holders[node['id']]}"
        for node in seen.nodes
        if node["state"] == "held" and holders[node["id"]] not in ([], [node["lease"]])
    ]
    return wrong


def two_accounts(machine: str, accounts: Iterable[str]) -> list[str]:
    """No two people are on one machine."""
    found = sorted(accounts)
    return [f"{machine} has the accounts {found}"] if len(found) > 1 else []


def forgotten(seen: Seen, rented: Sequence[Row], released: Sequence[Row]) -> list[str]:
    """What was granted is there, once; it is over when, and only when, it was given back."""
    wrong = []
    by_id = {lease["id"]: lease for lease in seen.leases}
    given_back = {note["lease"] for note in released}
    for note in rented:
        lease = by_id.get(note["lease"])
        if lease is None:
            wrong.append(f"{note['lease']} was granted for {note['key']} and is not there")
        elif lease["request"] != note["key"]:
            wrong.append(f"{note['lease']} was granted for {note['key']}, not {lease['request']}")
        elif lease["id"] in given_back and lease["ended_at"] is None:
            wrong.append(f"{lease['id']} was released and is {lease['state']}")
        elif lease["id"] not in given_back and lease["state"] not in (*SERVED, "queued"):
            wrong.append(f"{lease['id']} was not released and is {lease['state']}"
                         f" ({lease['reason']})")  # fmt: skip
    keys = Counter(lease["request"] for lease in seen.leases)
    wrong += [f"{key} was granted {count} times" for key, count in keys.items() if count > 1]
    return wrong


def shortened(seen: Seen, extended: Sequence[Row]) -> list[str]:
    """No lease ends before what its owner was told."""
    ends = {lease["id"]: lease["expires_at"] for lease in seen.leases}
    return [
        f"{note['lease']} was extended until {note['until']} and ends at {ends.get(note['lease'])}"
        for note in extended
        if (ends.get(note["lease"]) or 0) < note["until"]
    ]


def stuck(seen: Seen) -> list[str]:
    """No run is unfinished, but for those that say why."""
    wrong = []
    for run in seen.runs:
        if run["state"] in UNFINISHED:
            wrong.append(f"run {run['id']} is {run['state']} ({run['note'] or run['error']})")
        if run["state"] == "stuck" and not run["error"]:
            wrong.append(f"run {run['id']} is stuck and does not say why")
    return wrong


def residue(seen: Seen, accounts: Mapping[str, set[str] | None]) -> list[str]:
    """Each machine has exactly the accounts of the lease that holds it."""
    wrong = []
    served = {lease["id"]: its_nodes(lease) for lease in seen.leases if lease["state"] in SERVED}
    for node in seen.nodes:
        wanted = {lease for lease, nodes in served.items() if node["id"] in nodes}
        found = accounts.get(node["name"])
        if found is None:
            wrong.append(f"{node['name']} could not be asked")
        elif found != wanted:
            wrong.append(f"{node['name']} has {sorted(found)}, and should have {sorted(wanted)}")
    return wrong


def idle(seen: Seen) -> list[str]:
    """Nothing waits for anything: nodes serve or are ready, nobody is queued."""
    wrong = [
        f"node {node['name']} is {node['state']} ({node['reason']})"
        for node in seen.nodes
        if node["state"] not in ("ready", "held")
    ]
    wrong += [
        f"lease {lease['id']} is {lease['state']} ({lease['reason']})"
        for lease in seen.leases
        if lease["ended_at"] is None and lease["state"] != "active"
    ]
    return wrong + stuck(seen)
