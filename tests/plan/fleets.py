"""Nodes, wishes and leases for the laws of the fleet's pure modules."""

from __future__ import annotations

from hypothesis import strategies as st

from essaim.model.fleet import Lease, LeaseState, Node, NodeState, Wish

NOW = 1_700_000_000_000
LABELS = st.dictionaries(st.sampled_from(["gpu", "disk"]), st.sampled_from(["a", "b"]), max_size=2)
SITES = st.sampled_from(["", "north", "south"])


@st.composite
def nodes(draw, most: int = 8) -> list[Node]:
    count = draw(st.integers(0, most))
    return [
        Node(
            id=f"n-{number}",
            name=f"node-{number}",
            site=draw(SITES),
            cores=draw(st.integers(1, 4)),
            memory=draw(st.sampled_from([512, 1024])),
            labels=draw(LABELS),
            state=draw(st.sampled_from([NodeState.READY] * 4 + list(NodeState))),
            drained=draw(st.sampled_from([False, False, False, True])),
            load=draw(st.floats(0, 4)),
            beat_at=NOW - draw(st.sampled_from([0, 1000, 44_000, 46_000, 10**9])),
            failures=draw(st.sampled_from([0, 0, 0, 1, 3])),
        )
        for number in range(count)
    ]


@st.composite
def wishes(draw) -> Wish:
    return Wish(
        count=draw(st.integers(1, 3)),
        cores=draw(st.integers(1, 4)),
        memory=draw(st.sampled_from([0, 512, 1024])),
        labels=draw(LABELS),
        site=draw(SITES),
        seconds=draw(st.integers(60, 7200)),
        priority=draw(st.sampled_from([0, 0, 0, 5])),
    )


@st.composite
def lines(draw, most: int = 10) -> list[Lease]:
    """Leases that wait, of a few people."""
    return [
        waiting(
            f"l-{number:04}", draw(st.sampled_from("abc")), draw(wishes()), draw(st.integers(0, 20))
        )
        for number in range(draw(st.integers(0, most)))
    ]


def waiting(key: str, user: str, wish: Wish, asked_at: int = 0) -> Lease:
    return Lease(
        id=key,
        user=user,
        wish=wish,
        public_key="key",
        state=LeaseState.QUEUED,
        account=key,
        asked_at=asked_at,
    )


def well(count: int, **values) -> list[Node]:
    """Nodes that nothing is wrong with."""
    shape = {"cores": 2, "memory": 1024, "state": NodeState.READY, "beat_at": NOW, **values}
    return [Node(id=f"n-{number}", name=f"n{number}", **shape) for number in range(count)]
