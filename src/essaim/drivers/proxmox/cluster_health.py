"""Whether a cluster has quorum, and whether its clocks and ours agree."""

from __future__ import annotations

import time
from typing import Any

from essaim.drivers.doctor import Check
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.examination import Examination, not_asked, refused

#: Seconds by which clocks may differ before it is told: they are asked for in whole seconds.
APART = 5.0


def check_quorum(its: Examination) -> Check:
    """Whether most of the cluster's nodes hear each other: without that nothing can be changed."""
    try:
        rows: list[dict[str, Any]] = its.api.get("cluster/status")
    except ApiError as error:
        return refused("quorum", "the quorum of the cluster", error)
    own = next((row for row in rows if row.get("type") == "cluster"), None)
    if own is None:
        return Check("quorum", ok=True, text="one node that is in no cluster")
    up = sum(int(row.get("online") or 0) for row in rows if row.get("type") == "node")
    text = f"{up} of {own.get('nodes', up)} nodes of {own.get('name', 'the cluster')} are up"
    if int(own.get("quorate") or 0):
        return Check("quorum", ok=True, text=text)
    text += "; there is no quorum: no machine can be made or changed\non a node: pvecm status"
    return Check("quorum", ok=False, text=text)


def check_clocks(its: Examination) -> Check:
    """How far the nodes' clocks are from ours, and from each other."""
    ahead: dict[str, float] = {}
    for node in its.online:
        before = time.time()
        try:
            told = float(its.api.get(f"nodes/{node}/time")["time"])
        except ApiError as error:
            return refused("clocks", f"the clock of {node}", error)
        # Whole seconds, at some moment between question and answer: the nearest that fits.
        ahead[node] = _gap(told, before, time.time())
    if not ahead:
        return not_asked("clocks", "no clock", "no node answers")
    apart = max(ahead.values()) - min(ahead.values())
    worst = max(ahead, key=lambda node: abs(ahead[node]))
    text = f"{', '.join(ahead)}: within {APART:g} s of ours"
    if apart <= APART and abs(ahead[worst]) <= APART:
        return Check("clocks", ok=True, text=text)
    shown = ", ".join(f"{node} {seconds:+.0f} s" for node, seconds in ahead.items())
    text = f"compared with ours: {shown}; tokens, tickets and certificates expire by these clocks\n"
    text += f"on {worst if apart > APART else 'the nodes, and here'}: chronyc tracking"
    return Check("clocks", ok=True, warn=True, text=text)


def _gap(told: float, before: float, after: float) -> float:
    """By how many seconds a clock is ahead that told this between two moments of ours."""
    if told < before - 1:
        return told + 1 - before
    return told - after if told > after else 0.0
