"""Several API processes over one database: nobody gets another's machine, and the queue is fair.

R-D2, R-D3.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import httpx
import pytest

from api.replica import replicas
from api.rig import KEY, Plane, wait_for
from essaim.model.fleet import LeaseState, NodeState
from essaim.plan.queue import line_up
from patience import in_test_all

REPLICAS = 3
CLIENTS = 300
MACHINES = 100
RETURNED = 40
PATIENCE = 300.0


async def all_at_once(addresses: list[str], asked: list[tuple[str, str, dict]]) -> list:
    """Ask everything at the same moment, each of the servers in turn; returns the answers."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=address,
                    timeout=PATIENCE,
                    limits=httpx.Limits(max_connections=None),
                    verify=False,  # there is no TLS on the loopback
                )
            )
            for address in addresses
        ]
        return await asyncio.gather(
            *(
                clients[number % len(clients)].request(
                    "POST" if body else "GET",
                    path,
                    json=body or None,
                    headers={"Authorization": f"Bearer {token}"},
                )
                for number, (path, token, body) in enumerate(asked)
            )
        )


def ask(addresses: list[str], asked: list[tuple[str, str, dict]]) -> list[dict]:
    answers = asyncio.run(all_at_once(addresses, asked))
    wrong = [answer.text for answer in answers if answer.status_code not in (200, 201, 202)]
    assert wrong == []
    return [answer.json() for answer in answers]


def ready_machines(plane: Plane) -> None:
    for number in range(MACHINES):
        plane.ready(f"pc-{number:03}")
    assert len(plane.fleet.list(states=[NodeState.READY])) == MACHINES


def check_no_doubles(plane: Plane) -> None:
    """Every held node is held by the lease that has it, and by no other."""
    held = {node.id: node.lease for node in plane.fleet.list(states=[NodeState.HELD])}
    served = [each for each in plane.leases.list(limit=10_000) if each.state.served]
    owned = [(node, each.id) for each in served for node in each.nodes]
    assert max(Counter(node for node, _lease in owned).values()) == 1
    assert dict(owned) == held


@pytest.mark.parametrize(
    "kind",
    [
        "mariadb",
        pytest.param("postgresql", marks=in_test_all),
        pytest.param("sqlite", marks=in_test_all),
    ],
)
def test_300_clients_of_3_processes_rent_100_machines(url):  # R-D2 R-D3
    with contextlib.closing(Plane(url)) as plane, replicas(url, REPLICAS) as addresses:
        ready_machines(plane)
        # Half as many people as wishes: who has got one machine waits behind who has none.
        people = [plane.user(f"student-{number:03}") for number in range(CLIENTS // 2)]
        tokens = [plane.token(user) for user in people] * 2
        token_of = {user.id: token for user, token in zip(people, tokens, strict=False)}
        wish = {"public_key": KEY, "patience": 0}
        rented = ask(addresses, [("/api/rent", token, wish) for token in tokens])

        queued = [each for each in rented if each["state"] == "queued"]
        granted = [each for each in rented if each["state"] in ("granted", "active")]
        assert (len(granted), len(queued)) == (MACHINES, CLIENTS - MACHINES)
        assert len({each["id"] for each in rented}) == CLIENTS
        assert len({node for each in granted for node in each["nodes"]}) == MACHINES
        check_no_doubles(plane)

        look = [(f"/api/leases/{each['id']}", token_of[each["user"]], {}) for each in queued]
        places = {each["id"]: each["position"] for each in ask(addresses, look)}
        assert sorted(places.values()) == list(range(1, CLIENTS - MACHINES + 1))
        waiting = plane.leases.list(states=[LeaseState.QUEUED], limit=CLIENTS)
        has = Counter(each["user"] for each in granted)
        line = [each.id for each in line_up(waiting, has)]
        assert sorted(places, key=places.__getitem__) == line

        active = lambda: plane.leases.counts()[LeaseState.ACTIVE] == MACHINES  # noqa: E731 - short
        wait_for(active, PATIENCE)
        back = granted[:RETURNED]
        given_back = [
            ("/api/release", token_of[each["user"]], {"lease": each["id"]}) for each in back
        ]
        ask(addresses, given_back)
        wait_for(lambda: len(waiting_ids(plane)) == len(queued) - RETURNED, PATIENCE)
        wait_for(active, PATIENCE)
        check_no_doubles(plane)
        check_fair(plane, line, {each["user"] for each in back})


def waiting_ids(plane: Plane) -> set[str]:
    return {each.id for each in plane.leases.list(states=[LeaseState.QUEUED], limit=CLIENTS)}


def check_fair(plane: Plane, line: list[str], gave: set[str]) -> None:
    """Nobody was served before somebody who had fewer machines, or as few and asked earlier.

    Who gives a machine back moves ahead in the line while others are being served, so the order is
    compared among those who gave nothing back.
    """
    left = waiting_ids(plane)
    others = [each for each in map(plane.leases.get, line) if each.user not in gave]
    served = [each.id not in left for each in others]
    assert served == sorted(served, reverse=True)
