"""Replicas that are containers of one service of a Compose project.

Asks the Docker engine itself: a further replica is made like one that is there, so neither the
Compose file nor its program is needed, and the two agree on what belongs to the service.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx

from essaim.model.errors import TransientError
from essaim.scaling.replicas import Replica

SOCKET = "/var/run/docker.sock"
LABEL = "com.docker.compose"
#: Seconds an answer may take.
ANSWER_WITHIN = 20.0
#: Seconds stopping may take: the service's own `stop_grace_period`, and then it is killed.
STOP_WITHIN = 300.0
THERE = ("running", "restarting", "paused")
#: Networks that a container does not join: it has them, or nothing.
OWN = ("host", "none", "default")
_NUMBERED = re.compile(r"(?P<stem>.*[-_])\d+")
_OK = (200, 201, 204)


class Containers:
    """The containers of a service; see `Replicas`."""

    def __init__(self, project: str, service: str, *, socket: str = SOCKET) -> None:
        self._project, self._service, self._socket = project, service, socket
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket),
            base_url="http://docker",
            timeout=ANSWER_WITHIN,
        )

    def list(self) -> list[Replica]:
        """See the protocol."""
        names = [each["Id"] for each in self._all() if each["State"] in THERE]
        found = [each for each in map(self._replica, names) if each is not None]
        return sorted(found, key=lambda each: (each.started_at, each.id))

    def add(self, count: int) -> None:
        """Start so many more: those that are there and stopped first."""
        present = self._all()
        resting = [each["Id"] for each in present if each["State"] not in THERE]
        for key in resting[:count]:
            self._ask("POST", f"/containers/{key}/start", also=[304])
        missing = count - len(resting[:count])
        if missing > 0:
            self._clone(present, missing)

    def remove(self, ids: Sequence[str]) -> None:
        """Stop them, within the grace they have, and remove what is left of them."""
        for key in ids:
            self._ask("POST", f"/containers/{key}/stop", also=[304, 404], within=STOP_WITHIN)
            self._ask("DELETE", f"/containers/{key}", {"v": 1}, also=[404, 409])

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def _all(self) -> Sequence[Mapping[str, Any]]:
        labels = [
            f"{LABEL}.project={self._project}",
            f"{LABEL}.service={self._service}",
            f"{LABEL}.oneoff=False",
        ]
        query: dict[str, str | int] = {"all": 1, "filters": json.dumps({"label": labels})}
        found: list[dict[str, Any]] = self._ask("GET", "/containers/json", query)
        return sorted(found, key=lambda each: (each["State"] not in THERE, each["Created"]))

    def _replica(self, key: str) -> Replica | None:
        about = self._ask("GET", f"/containers/{key}/json", also=[404])
        # The engine would otherwise measure for a second before it answers.
        now = {"stream": "false", "one-shot": "true"}
        stats = self._ask("GET", f"/containers/{key}/stats", now, also=[404, 409])
        if "State" not in about:
            return None  # it ended since it was listed
        return Replica(key, _cpu(stats), _moment(about["State"]["StartedAt"]))

    def _clone(self, present: Sequence[Mapping[str, Any]], count: int) -> None:
        if not present:
            raise TransientError(
                f"docker: project {self._project} has no container of service {self._service}",
                hint=f"start the first: docker-compose -p {self._project} up -d {self._service}",
            )
        model = self._ask("GET", f"/containers/{present[0]['Id']}/json")
        taken = {name.lstrip("/") for each in present for name in each["Names"]}
        for name, number in _free(self._stem(model), taken, count):
            self._make(model, name, number)

    def _stem(self, model: Mapping[str, Any]) -> str:
        numbered = _NUMBERED.fullmatch(model["Name"].lstrip("/"))
        return numbered["stem"] if numbered else f"{self._project}_{self._service}_"

    def _make(self, model: Mapping[str, Any], name: str, number: int) -> None:
        first, *others = _networks(model).items() or [("", {})]
        body = {**_config(model, number), "HostConfig": model["HostConfig"]}
        if first[0]:
            body["NetworkingConfig"] = {"EndpointsConfig": dict([first])}
        # Its name is its own: whoever makes it twice is told so.
        made = self._ask("POST", "/containers/create", {"name": name}, body=body)["Id"]
        try:
            for network, settings in others:
                joining = {"Container": made, "EndpointConfig": settings}
                self._ask("POST", f"/networks/{network}/connect", body=joining)
            self._ask("POST", f"/containers/{made}/start")
        except TransientError:
            with contextlib.suppress(TransientError):
                self._ask("DELETE", f"/containers/{made}", {"v": 1, "force": 1}, also=[404])
            raise

    def _ask(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        *,
        body: Any = None,
        also: Collection[int] = (),
        within: float = ANSWER_WITHIN,
    ) -> Any:
        """Return what the engine answers; an empty object for a status that is `also` well."""
        try:
            answer = self._http.request(verb, path, params=query, json=body, timeout=within)
        except httpx.HTTPError as error:
            raise TransientError(
                f"docker at {self._socket}: no answer to {verb} {path}: {error}",
                hint="see that the engine runs and that this user may use its socket",
            ) from error
        if answer.status_code in also:
            return {}
        if answer.status_code not in _OK:
            raise TransientError(
                f"docker at {self._socket}: {verb} {path}: {answer.status_code} {_said(answer)}"
            )
        return answer.json() if answer.content else {}


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def _cpu(stats: Mapping[str, Any]) -> float | None:
    used = stats.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage")
    # One that does not run, or runs no more, has used nothing at all.
    return used / 1e9 if used else None


def _moment(written: str) -> float:
    return datetime.fromisoformat(written).timestamp()


def _free(stem: str, taken: Collection[str], count: int) -> Iterator[tuple[str, int]]:
    number = 0
    while count:
        number += 1
        if f"{stem}{number}" not in taken:
            count -= 1
            yield f"{stem}{number}", number


def _config(model: Mapping[str, Any], number: int) -> dict[str, Any]:
    config = {**model["Config"]}
    # What is of the one container, not of the service.
    config.pop("MacAddress", None)
    if config.get("Hostname") == model["Id"][:12]:
        del config["Hostname"]
    config["Labels"] = {**config["Labels"], f"{LABEL}.container-number": str(number)}
    return config


def _networks(model: Mapping[str, Any]) -> dict[str, Any]:
    """The networks it is in, with the names it has there, the main one first."""
    if model["HostConfig"]["NetworkMode"] in OWN:
        return {}
    own = (model["Id"][:12], model["Id"])
    main = model["HostConfig"]["NetworkMode"]
    found = model["NetworkSettings"]["Networks"]
    return {
        name: {"Aliases": [each for each in found[name].get("Aliases") or () if each not in own]}
        for name in sorted(found, key=lambda name: (name != main, name))
    }
