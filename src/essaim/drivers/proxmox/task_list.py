"""Lists of tasks: how many of them ended, and which of ours make a machine that nobody knows of.

`cluster/tasks` serves all nodes with one call, but lists nothing to a token without Sys.Audit on
the whole cluster.  Each node lists an account's own tasks to everybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from essaim.drivers.proxmox import tasks
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.refusals import Refusal, sort_end
from essaim.drivers.proxmox.tasks import Upid, end_of, read_upid

#: Tasks that make a machine: a clone's name has the VMID of its source, a creation's the new one.
_CLONES, _CREATIONS = ("vzclone", "qmclone"), ("vzcreate", "qmcreate")
#: As many as these are asked about one by one; more by a listing.
_FEW = 2
#: Seconds for which the cluster's listing is not asked for that showed none of our tasks.
_BLIND = 300.0
#: Seconds by which the clocks of nodes may differ from ours.
_SKEW = 120.0
_MOST = 1000


class TaskList:
    """The tasks of one account at one site.  Any number of threads may ask."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._blind = float("-inf")
        self._running: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    def ends(self, upids: list[str]) -> dict[str, str]:
        """How those tasks ended that did: by one call for all of them, or one for each of a few."""
        if len(upids) <= _FEW:
            return self._one_by_one(upids)
        rows = self._cluster_rows(upids)
        if sum(upid not in rows for upid in upids) > _FEW:
            rows |= self._node_rows(upids)
        found = {
            upid: str(rows[upid].get("status") or "")
            for upid in upids
            if upid in rows and rows[upid].get("endtime")
        }
        # A node tells of its newest tasks only: what is not listed has to be asked for.
        return found | self._one_by_one([upid for upid in upids if upid not in rows][:_FEW])

    def making(self, nodes: Iterable[str], number: int, *, anyone: bool = False) -> set[str]:
        """The tasks of ours, or of anyone, that run now and may make that VMID.

        However many ask at once, one listing of each node serves all who came before it was made.
        """
        asked = time.monotonic()
        with self._lock:
            at, running = self._running
            if at < asked:
                at = time.monotonic()
                rows = [row for node in nodes for row in self._of_node(node, source="active")]
                running = frozenset(str(row["upid"]) for row in rows if not row.get("endtime"))
                self._running = (at, running)
        return {upid for upid in running if self._may_make(upid, number, anyone=anyone)}

    def died(self, nodes: Iterable[str], number: int, seconds: float) -> set[str]:
        """The tasks that may have made that VMID and died in the last so many seconds."""
        since = int(time.time() - seconds - _SKEW)
        rows = [row for n in nodes for row in self._of_node(n, source="archive", since=since)]
        ends = {str(row["upid"]): str(row.get("status") or "") for row in rows}
        return {
            upid
            for upid, end in ends.items()
            if not tasks.went_well(end)
            and sort_end(end) is Refusal.LOST
            and self._may_make(upid, number)
        }

    def _may_make(self, upid: str, number: int, *, anyone: bool = False) -> bool:
        its: Upid | None = read_upid(upid)
        if its is None or not (anyone or its.user == self._api.settings.who):
            return False
        return its.kind in _CLONES or (its.kind in _CREATIONS and its.id == str(number))

    def _cluster_rows(self, upids: list[str]) -> dict[str, dict[str, Any]]:
        if time.monotonic() - self._blind < _BLIND:
            return {}
        rows = {str(row["upid"]): row for row in self._api.get("cluster/tasks")}
        if not any(upid in rows for upid in upids):
            self._blind = time.monotonic()
        return rows

    def _node_rows(self, upids: list[str]) -> dict[str, dict[str, Any]]:
        parts = [its for its in map(read_upid, upids) if its is not None]
        first = {its.node: its.start for its in sorted(parts, key=lambda its: -its.start)}
        return {
            str(row["upid"]): row
            for node, start in first.items()
            for row in self._of_node(node, source="all", since=start)
        }

    def _of_node(self, node: str, **how: Any) -> list[dict[str, Any]]:
        """The tasks of a node; none when it does not answer: they died with it."""
        try:
            rows: list[dict[str, Any]] = self._api.get(f"nodes/{node}/tasks", limit=_MOST, **how)
        except ApiError as error:
            if error.kind is not Refusal.LOST:
                raise
            return []
        return rows

    def _one_by_one(self, upids: list[str]) -> dict[str, str]:
        ends = {upid: end_of(self._api, upid) for upid in upids}
        return {upid: end for upid, end in ends.items() if end is not None}
