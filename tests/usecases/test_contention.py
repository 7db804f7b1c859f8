"""Many who rent at once, in several processes (R-D3)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from essaim.model.fleet import LeaseState, NodeState, Wish
from essaim.store.database import open_database
from essaim.usecases import leases as use
from patience import in_test_all
from usecases.plane import KEY, Plane

PROCESSES = 3
CLIENTS = 300
NODES = 100

CLIENT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from essaim.model.fleet import Wish
from essaim.store.database import open_database
from essaim.usecases import leases
from usecases.plane import KEY, Plane
database = open_database(sys.argv[1])
database.patience = 240.0  # they wait for each other, the longer the busier the machine
plane = Plane(database)
everybody = json.loads(sys.stdin.readline())
people = [plane.people.find(name)[0] for name in everybody]
print("ready", flush=True)
sys.stdin.readline()
def one(user):
    try:
        lease = leases.rent(plane, user, Wish(seconds=3600), KEY)
        return {"lease": lease.id, "state": lease.state.value, "nodes": lease.nodes}
    except Exception as error:
        return {"error": repr(error)}
with ThreadPoolExecutor(20) as threads:
    print(json.dumps(list(threads.map(one, people))), flush=True)
database.close()
"""


def clients(url: str, names: list[str]) -> list[dict]:
    """Let everybody rent at once, in several processes; return what they got."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for _ in range(PROCESSES)
    ]
    for number, process in enumerate(processes):
        process.stdin.write(json.dumps(names[number::PROCESSES]) + "\n")
        process.stdin.flush()
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * PROCESSES
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    return [each for answer in answers for each in json.loads(answer)]


@pytest.mark.parametrize(
    "kind",
    ["mariadb", *(pytest.param(kind, marks=in_test_all) for kind in ("postgresql", "sqlite"))],
)
def test_300_clients_share_100_nodes_and_the_rest_queue_fairly(url):
    database = open_database(url)
    plane = Plane(database)
    for number in range(NODES):
        plane.ready(f"node-{number}")
    names = [f"client-{number}" for number in range(CLIENTS)]
    users = {name: plane.user(name) for name in names}

    answers = clients(url, names)

    assert [each["error"] for each in answers if "error" in each] == []
    # Some were granted after their own answer: the database is the truth.
    leases = plane.leases.list(limit=1000)
    assert Counter(lease.state for lease in leases) == {
        LeaseState.GRANTED: NODES,
        LeaseState.QUEUED: CLIENTS - NODES,
    }
    given = Counter(node for lease in leases for node in lease.nodes)
    assert len(given) == NODES
    assert set(given.values()) == {1}
    nodes = plane.fleet.list(states=[NodeState.HELD])
    assert {node.id: node.lease for node in nodes} == {
        lease.nodes[0]: lease.id for lease in leases if lease.nodes
    }
    assert len(plane.runs("rent")) == NODES
    positions = [each.id for each in plane.leases.line().leases]
    assert len(set(positions)) == len(positions) == CLIENTS - NODES
    by_id = {user.id: user for user in users.values()}
    for position in (0, 99, 199):
        waiting = plane.leases.get(positions[position])
        assert use.lease(plane, by_id[waiting.user], waiting.id).position == position + 1

    # Releases grant the queue in its order.
    ending = [lease for lease in leases if lease.state is LeaseState.GRANTED][:20]
    granted = []
    for lease in ending:
        use.release(plane, by_id[lease.user], lease.id)
        plane.returned(lease.id)
        granted += [each.id for each in use.grant_queue(plane)]
    assert granted == positions[:20]
    database.close()


def test_several_processes_grant_the_queue_at_once(url):
    database = open_database(url)
    plane = Plane(database)
    names = [f"client-{number}" for number in range(60)]
    for name in names:
        use.rent(plane, plane.user(name), Wish(seconds=3600), KEY)
    first = [each.id for each in plane.leases.line().leases]
    assert len(first) == 60
    for number in range(40):
        plane.ready(f"node-{number}")
    late = [f"late-{number}" for number in range(30)]
    for name in late:
        plane.user(name)

    # Each newcomer finds others waiting, queues behind them and helps to serve the queue.
    answers = clients(url, late)

    assert [each["error"] for each in answers if "error" in each] == []
    leases = {lease.id: lease for lease in plane.leases.list()}
    served = [key for key in first if leases[key].state is LeaseState.GRANTED]
    assert served == first[:40]
    assert all(leases[each["lease"]].state is LeaseState.QUEUED for each in answers)
    assert len({leases[key].nodes for key in served}) == 40
    database.close()
