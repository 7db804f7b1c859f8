"""A simulator of AWX's REST API: its shapes, refusals and rules; no playbook runs behind it.

python -m essaim_lab.simulators.awx --port 8052

A job passes pending, running and its end by a look of whoever asks about it, and "runs" the tasks
it was told to have, each on every host of its limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from essaim_lab.simulators.loopback import Handler, serving, until_told

#: What may be given at a launch, and what a template must say to take it.
_PROMPTS = {
    "extra_vars": "ask_variables_on_launch",
    "limit": "ask_limit_on_launch",
    "job_tags": "ask_tags_on_launch",
    "inventory": "ask_inventory_on_launch",
}
_LIFE = ("pending", "running")
_HIDDEN = "$encrypted$"


class RefusedError(Exception):
    """What is answered instead."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


def gone() -> RefusedError:
    """There is nothing at that address."""
    return RefusedError(404, {"detail": "Not found."})


@dataclass(slots=True)
class Job:
    """One launch of a template."""

    id: int
    template: int
    given: dict[str, Any]
    looks: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)


class Simulator:
    """An AWX on the loopback, from `with` to its end.

    `url`, `ca` and `token` are what a client needs.  `templates`, `hosts`, `groups` and `jobs` may
    be looked at and changed; `tasks` are what every job "runs", `fails` those of them that fail.
    """

    def __init__(self, *, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self.templates: dict[int, dict[str, Any]] = {}
        self.surveys: dict[int, list[dict[str, Any]]] = {}
        self.inventories: dict[int, dict[str, Any]] = {}
        self.hosts: dict[int, dict[str, Any]] = {}
        self.groups: dict[int, dict[str, Any]] = {}
        self.jobs: dict[int, Job] = {}
        self.tasks = ["prepare", "install"]
        self.fails: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self._faults: list[int] = []
        self._next = 1
        self._port = port
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        served = self._stack.enter_context(serving(_Handler, self, self._port))
        self.ca, self.url = served.ca, served.url
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def inventory(self, name: str) -> int:
        """Make an inventory; gives its number."""
        number = self._number()
        self.inventories[number] = {"id": number, "name": name}
        return number

    def template(self, name: str, *, survey: Mapping[str, str] | None = None, **said: Any) -> int:
        """Make a job template that asks for all it may be given, but for what is said; its number.

        `survey` says which variables it asks for, and their types.
        """
        number = self._number()
        prompts = dict.fromkeys(_PROMPTS.values(), True)
        its = {"id": number, "name": name, "inventory": None, "survey_enabled": bool(survey)}
        self.templates[number] = {**its, **prompts, **said}
        self.surveys[number] = [
            {"variable": variable, "type": kind, "question_name": variable, "required": False}
            for variable, kind in (survey or {}).items()
        ]
        return number

    def fault(self, status: int, times: int = 1) -> None:
        """Answer the next questions with that status, whatever they are."""
        self._faults += [status] * times

    def members(self, group: str) -> dict[str, str]:
        """The hosts of a group and their addresses."""
        found = next((each for each in self.groups.values() if each["name"] == group), None)
        hosts = [self.hosts[number] for number in (found or {"hosts": ()})["hosts"]]
        return {each["name"]: json.loads(each["variables"])["ansible_host"] for each in hosts}

    # -- answers --------------------------------------------------------------------------------

    def handle(
        self, method: str, words: list[str], query: Mapping[str, str], token: str, body: Any
    ) -> Any:
        """Answer one question.  Raises what is answered instead."""
        with self._lock:
            self.calls.append((method, "/".join(words[2:])))
            if self._faults:
                raise RefusedError(self._faults.pop(0), {"detail": "A server error has occurred."})
            if not secrets.compare_digest(token, f"Bearer {self.token}"):
                raise RefusedError(401, {"detail": "Authentication credentials were not provided."})
            if words[:2] != ["api", "v2"]:
                raise gone()
            return self._answer(method, words[2:], query, body)

    def _answer(self, method: str, words: list[str], query: Mapping[str, str], body: Any) -> Any:
        match words:
            case [kind] if method == "GET":
                return _page(list(self._table(kind).values()), query)
            case ["jobs", number, *rest] if method == "GET":
                return self._job(int(number), rest, query)
            case [kind, number]:
                return self._one(method, self._row(kind, number), body)
            case ["inventories", number, ("hosts" | "groups") as kind]:
                return self._inside(method, self._row("inventories", number), kind, query, body)
            case ["groups", number, "hosts"]:
                return self._group(method, self._row("groups", number), query, body)
            case ["job_templates", number, what]:
                return self._launcher(method, self._row("job_templates", number), what, body)
            case _:
                raise gone()

    def _one(self, method: str, row: dict[str, Any], body: Any) -> Any:
        if method == "DELETE":
            return self._drop(row)
        if method == "PATCH":
            row |= body
        return row

    def _table(self, kind: str) -> dict[int, dict[str, Any]]:
        tables = {"job_templates": self.templates, "inventories": self.inventories}
        found = {**tables, "hosts": self.hosts, "groups": self.groups}.get(kind)
        if found is None:
            raise gone()
        return found

    def _row(self, kind: str, number: str) -> dict[str, Any]:
        found = self._table(kind).get(int(number)) if number.isdigit() else None
        if found is None:
            raise gone()
        return found

    def _drop(self, host: Mapping[str, Any]) -> None:
        del self.hosts[host["id"]]
        for group in self.groups.values():
            group["hosts"] = [number for number in group["hosts"] if number != host["id"]]

    def _inside(
        self, method: str, where: Mapping[str, Any], kind: str, query: Mapping[str, str], body: Any
    ) -> Any:
        table = self._table(kind)
        own = [each for each in table.values() if each["inventory"] == where["id"]]
        if method == "GET":
            return _page(own, query)
        if any(each["name"] == body["name"] for each in own):
            what = {"__all__": [f"{kind} with this Name and Inventory already exists."]}
            raise RefusedError(400, what)
        number = self._number()
        extra: dict[str, Any] = {"hosts": []} if kind == "groups" else {"variables": ""}
        table[number] = {"id": number, "inventory": where["id"], **extra, **body}
        return table[number]

    def _group(
        self, method: str, group: dict[str, Any], query: Mapping[str, str], body: Any
    ) -> Any:
        if method == "GET":
            return _page([self.hosts[number] for number in group["hosts"]], query)
        if "id" not in body:
            where = self.inventories[group["inventory"]]
            made = self._inside("POST", where, "hosts", {}, body)
            group["hosts"].append(made["id"])
            return made
        number = self._row("hosts", str(body["id"]))["id"]
        kept = [each for each in group["hosts"] if each != number]
        group["hosts"] = kept if body.get("disassociate") else [*kept, number]
        return None

    def _launcher(self, method: str, template: Mapping[str, Any], what: str, body: Any) -> Any:
        number = template["id"]
        if what == "survey_spec":
            return {"name": "", "description": "", "spec": self.surveys[number]}
        if what == "jobs":
            mine = [job for job in self.jobs.values() if job.template == number]
            return _page([self._told(job) for job in reversed(mine)], {})
        if what != "launch" or method != "POST":
            raise gone()
        asked = {each["variable"] for each in self.surveys[number]}
        given, ignored = {}, {}
        for key, value in body.items():
            if template.get(_PROMPTS.get(key, "")):
                given[key] = value
            elif key == "extra_vars":
                given[key] = {name: value[name] for name in value if name in asked}
                ignored[key] = {name: value[name] for name in value if name not in asked}
            else:
                ignored[key] = value
        job = Job(self._number(), number, {"inventory": template["inventory"], **given})
        job.events = self._events(job)
        self.jobs[job.id] = job
        return {"job": job.id, "ignored_fields": ignored, **self._told(job)}

    def _told(self, job: Job) -> dict[str, Any]:
        hidden = {e["variable"] for e in self.surveys[job.template] if e["type"] == "password"}
        variables = job.given.get("extra_vars") or {}
        shown = {key: _HIDDEN if key in hidden else value for key, value in variables.items()}
        failed = any(event["event"] == "runner_on_failed" for event in job.events)
        over = job.looks > len(_LIFE)
        end = "failed" if failed else "successful"
        status = end if over else _LIFE[min(job.looks, len(_LIFE)) - 1] if job.looks else "new"
        return {
            "id": job.id,
            "job_template": job.template,
            "status": status,
            "failed": over and failed,
            "extra_vars": json.dumps(shown),
            "limit": job.given.get("limit", ""),
            "job_tags": job.given.get("job_tags", ""),
            "inventory": job.given.get("inventory"),
            "job_explanation": "",
            "result_traceback": "",
        }

    def _job(self, number: int, rest: list[str], query: Mapping[str, str]) -> Any:
        job = self.jobs.get(number)
        if job is None:
            raise gone()
        if rest == ["job_events"]:
            happened = job.events if job.looks > len(_LIFE) else job.events[: job.looks]
            return _page(happened, query)
        job.looks += 1
        return self._told(job)

    def _events(self, job: Job) -> list[dict[str, Any]]:
        """What the callback of ansible-runner would have told of the job."""
        hosts = list(self.members(job.given.get("limit", ""))) or ["localhost"]
        events: list[dict[str, Any]] = []

        def add(kind: str, data: dict[str, Any]) -> None:
            counter = len(events) + 1
            events.append({"id": counter, "counter": counter, "event": kind, "event_data": data})

        for task in self.tasks:
            add("playbook_on_task_start", {"name": task, "task": task})
            for host in hosts:
                failed = task in self.fails
                body = {"msg": f"{task} failed", "rc": 1} if failed else {"stdout": f"{task} done"}
                kind = "runner_on_failed" if failed else "runner_on_ok"
                add(kind, {"task": task, "host": host, "res": body})
            if task in self.fails:
                break
        return events

    def _number(self) -> int:
        self._next += 1
        return self._next


def _page(rows: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Filter, sort and cut as Django's REST framework does."""
    size, page = int(query.get("page_size", 25)), int(query.get("page", 1))
    order = query.get("order_by", "")
    wanted = {key: value for key, value in query.items() if key in ("name", "event")}
    found = [row for row in rows if all(str(row.get(k)) == v for k, v in wanted.items())]
    if order:
        found.sort(key=lambda row: row[order.lstrip("-")], reverse=order.startswith("-"))
    more = page * size < len(found)
    return {
        "count": len(found),
        "next": f"?page={page + 1}" if more else None,
        "previous": None,
        "results": found[(page - 1) * size : page * size],
    }


class _Handler(Handler):
    simulator: Simulator

    def _answer(self) -> None:
        raw = self.read()
        parts = urllib.parse.urlsplit(self.path)
        # Django sends away whoever leaves out the slash at the end; here nobody is there then.
        whole = parts.path if parts.path.endswith("/") else ""
        words = [urllib.parse.unquote(word) for word in whole.split("/") if word]
        query = dict(urllib.parse.parse_qsl(parts.query))
        status, body = (201 if self.command == "POST" else 200), None
        try:
            token = self.headers.get("Authorization", "")
            given = json.loads(raw) if raw else {}
            body = self.simulator.handle(self.command, words, query, token, given)
            status = status if body is not None else 204
        except RefusedError as exc:
            status, body = exc.status, exc.body
        self.give(status, b"" if body is None else json.dumps(body).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 - what http.server looks for


def main() -> None:
    """Serve until told to end; what a client needs is printed as JSON."""
    parser = argparse.ArgumentParser(description="A simulator of AWX's REST API.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--template", default="projects", help="the job template it has")
    asked = parser.parse_args()
    with Simulator(port=asked.port) as simulator:
        simulator.template(asked.template, inventory=simulator.inventory("essaim"))
        needed = {"url": simulator.url, "ca": str(simulator.ca), "token": simulator.token}
        sys.stdout.write(json.dumps(needed) + "\n")
        sys.stdout.flush()
        until_told()


if __name__ == "__main__":
    main()
