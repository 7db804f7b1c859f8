"""Tasks, by the API: what runs, what ran, how it ended."""

from __future__ import annotations

from typing import Any

from essaim_lab.simulators.proxmox.cluster import Answer, Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import refused_parameters
from essaim_lab.simulators.proxmox.state import Task


def _task(cluster: Cluster, call: Call) -> Task:
    upid = call.said["upid"]
    if not upid.startswith("UPID:") or upid.count(":") < 8:  # noqa: PLR2004 - its parts
        raise refused_parameters({"upid": "unable to parse worker upid"})
    found = cluster.tasks.get(upid)
    if found is None or found.node != call.node:
        raise refused_parameters({"upid": "no such task"})
    return found


def _is_theirs(task: Task, who: str) -> bool:
    """A user's own, and their tokens'; a token's only its own."""
    return task.user == who or ("!" not in who and task.user.startswith(f"{who}!"))


def _need(cluster: Cluster, call: Call, task: Task, privilege: str) -> None:
    if not _is_theirs(task, call.who):
        cluster.access.need(call.who, f"/nodes/{call.node}", privilege)


@answers("GET /cluster/tasks")
def recent(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """What runs everywhere, and of what is over the few newest of each node.

    Whoever may not audit everything sees their own; a token without that right sees nothing, for
    tasks are listed under the name of its user.
    """
    all_ = cluster.access.may(call.who, "/", "Sys.Audit")
    found = []
    for name, node in cluster.nodes.items():
        if not node.online:
            continue
        runs = [task for task in cluster.tasks_of(name) if task.running]
        room = cluster.settings.recent_tasks - len(runs)
        over = [task for task in cluster.tasks_of(name) if not task.running][: max(0, room)]
        found += [
            task.entry()
            for task in (*runs, *over)
            if all_ or task.user.partition("!")[0] == call.who
        ]
    return found


@answers("GET /nodes/{node}/tasks")
def tasks(cluster: Cluster, call: Call) -> Answer:
    """The tasks of a node, newest first; those that run only when asked for."""
    said = call.said
    auditor = cluster.access.may(call.who, f"/nodes/{call.node}", "Sys.Audit")
    start, limit = said.get("start", 0), said.get("limit", 50)
    matching = [
        task
        for task in cluster.tasks_of(call.node)
        if (auditor or _is_theirs(task, call.who)) and _wanted(task, said)
    ]
    entries = [task.entry() for task in matching[start : start + limit]]
    return Answer(
        data=[{**each, "status": each.get("status", "RUNNING")} for each in entries],
        total=len(matching),
    )


def _wanted(task: Task, said: Any) -> bool:
    source = said.get("source", "archive")
    if source != "all" and task.running != (source == "active"):
        return False
    chosen = said.get("statusfilter", "").lower().replace(";", ",")
    if chosen and _normal(task) not in chosen.split(","):
        return False
    return all(
        (
            not said.get("errors") or _normal(task) != "ok",
            said.get("typefilter", task.type) == task.type,
            str(said.get("vmid", task.id)) == task.id,
            said.get("userfilter", "").lower() in task.user.lower(),
            task.starttime >= said.get("since", task.starttime),
            task.starttime <= said.get("until", task.starttime),
        )
    )


def _normal(task: Task) -> str:
    status = task.exitstatus
    if status in ("", "unexpected status"):
        return "unknown"
    return "ok" if status == "OK" else "warning" if status.startswith("WARNINGS") else "error"


@answers("GET /nodes/{node}/tasks/{upid}/status")
def status(cluster: Cluster, call: Call) -> dict[str, Any]:
    """Whether it runs; how it ended when it does not."""
    task = _task(cluster, call)
    _need(cluster, call, task, "Sys.Audit")
    found = {**task.entry(), "pid": task.pid, "pstart": task.pstart}
    found.pop("endtime", None)
    found["status"] = "running" if task.running else "stopped"
    if not task.running:
        found["exitstatus"] = task.exitstatus
    return found


@answers("GET /nodes/{node}/tasks/{upid}/log")
def log(cluster: Cluster, call: Call) -> Answer:
    """What it has written."""
    task = _task(cluster, call)
    _need(cluster, call, task, "Sys.Audit")
    start, limit = call.said.get("start", 0), call.said.get("limit", 50) or len(task.lines)
    lines = list(enumerate(task.lines, 1))[start : start + limit]
    if not task.lines:
        lines = [(1, "no content")]
    return Answer(data=[{"n": n, "t": text} for n, text in lines], total=len(task.lines))


@answers("DELETE /nodes/{node}/tasks/{upid}")
def stop(cluster: Cluster, call: Call) -> None:
    """Interrupt it: it tidies up and fails."""
    task = _task(cluster, call)
    _need(cluster, call, task, "Sys.Modify")
    if task.running and task.process:
        task.process.interrupt("received interrupt")
