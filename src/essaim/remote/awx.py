"""Playbooks played by AWX (or Ansible Tower), through its REST API.

    awx:
      url: https://awx.example.org
      token: {env: AWX_TOKEN}     # or {file: …}: a personal access token
      template: projects          # the job template, by name or id; else the playbook's name
      inventory: essaim           # where machines are told of; else the template's own
      ca: awx-ca.pem              # when no public authority vouches for the server

The job template must ask for what it is given ("Prompt on launch").  Secrets are sent only to
questions of its survey whose answers AWX keeps encrypted.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from essaim.config.plays import has_secrets
from essaim.config.secrets import read_secret
from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.remote.player import told
from essaim.remote.playing import Following

if TYPE_CHECKING:
    import httpx

    from essaim.config.plays import Play
    from essaim.model.stacks import Site
    from essaim.remote.logs import Record

#: Seconds for one question and its answer.
_WITHIN = 30.0
_PAGE = 200
#: Jobs looked through for one that was begun before its number could be kept.
_RECENT = 50
#: The variable that says which run began a job.
MARK = "essaim_run"
#: How a host that we entered is described there.
_OURS = "a machine of Essaim"
_OVER = ("successful", "failed", "error", "canceled")
_LATER = (429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How far a job is."""

    status: str
    doing: str = ""  #: the task it is at
    why: str = ""  #: what AWX says of a job that could not be run at all

    @property
    def over(self) -> bool:
        """Nothing more will happen."""
        return self.status in _OVER


class Awx:
    """One AWX, as a site names it.  Used as a context; holds one connection while it is."""

    def __init__(self, site: Site, lab: Path) -> None:
        its: Mapping[str, Any] = site.settings["awx"]
        self._site = site.name
        self._template = str(its.get("template") or "")
        self._inventory = str(its.get("inventory") or "")
        self._http = _client(site.name, its, lab)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._http.close()

    # -- machines -------------------------------------------------------------------------------

    def tell(self, group: str, hosts: Sequence[tuple[str, str]]) -> None:
        """Make the group of AWX's inventory hold these machines, by name and address.

        Those that we told of before and that are gone are removed; hosts that others entered are
        left as they are.  Nothing when the site names no inventory: then AWX knows them from
        elsewhere.
        """
        if not self._inventory:
            return
        where = f"inventories/{self._one('inventories', self._inventory)['id']}"
        found = self._find(f"{where}/groups", group)
        found = found or self._ask("POST", f"{where}/groups", {"name": group})
        members = f"groups/{found['id']}/hosts"
        there = {each["name"]: each for each in self._all(members)}
        for name, address in hosts:
            host = there.pop(name, None) or self._find(f"{where}/hosts", name)
            self._enter(members, host, name, address)
        for host in there.values():
            if host.get("description") == _OURS:
                self._ask("DELETE", f"hosts/{host['id']}")

    def _enter(self, members: str, host: Mapping[str, Any] | None, name: str, address: str) -> None:
        """Have a host in a group, at its address unless somebody else says where it is."""
        variables = json.dumps({"ansible_host": address})
        if host is None:
            given = {"name": name, "variables": variables, "description": _OURS}
            self._ask("POST", members, given)
            return
        if host.get("description") == _OURS and host.get("variables") != variables:
            self._ask("PATCH", f"hosts/{host['id']}", {"variables": variables})
        self._ask("POST", members, {"id": host["id"]})

    # -- jobs -----------------------------------------------------------------------------------

    def launch(self, wanted: Play, extravars: Mapping[str, Any], *, run: str) -> int:
        """Begin a job for that run, or find the one that was begun for it; gives its number.

        RejectedError when the template would not take what it is to be given.
        """
        name = wanted.template or self._template or wanted.playbook.stem
        template = self._one("job_templates", name)
        given: dict[str, Any] = {"limit": wanted.group}
        if wanted.tags:
            given["job_tags"] = ",".join(wanted.tags)
        if self._inventory:
            inventory = self._one("inventories", self._inventory)["id"]
            if inventory != template.get("inventory"):
                given["inventory"] = inventory
        questions = self._survey(template)
        self._check_prompts(template, given, set(extravars) - questions.keys())
        self._check_secrets(name, wanted.extravars, questions)
        marked = dict(extravars)
        if template.get("ask_variables_on_launch"):
            if (job := self._begun(template, run)) is not None:
                return job
            marked[MARK] = run
        if marked:
            given["extra_vars"] = marked
        answer = self._ask("POST", f"job_templates/{template['id']}/launch", given)
        if ignored := [key for key, value in (answer.get("ignored_fields") or {}).items() if value]:
            raise RejectedError(
                f"AWX: job template {name} ignored {', '.join(sorted(ignored))}",
                hint="let it ask for them: Prompt on launch",
            )
        return int(answer["job"])

    def state(self, job: int) -> State:
        """Look how far a job is."""
        found = self._ask("GET", f"jobs/{job}")
        status = str(found.get("status") or "")
        why = str(found.get("job_explanation") or found.get("result_traceback") or "")
        if status in _OVER:
            return State(status=status, why=why)
        order = {"order_by": "-counter", "page_size": "1", "event": "playbook_on_task_start"}
        last = self._ask("GET", f"jobs/{job}/job_events", params=order).get("results") or [{}]
        doing = told(last[0]) or {}
        return State(status=status, doing=str(doing.get("name") or ""))

    def tell_end(
        self,
        job: int,
        state: State,
        wanted: Play,
        names: Mapping[str, str],
        *,
        secrets: Sequence[str],
        record: Record,
    ) -> None:
        """Log what a job's tasks did on which machine; RejectedError when it has failed.

        `names` says which machine a host of AWX's inventory is.
        """
        following = Following(wanted, names, secrets, record, lambda _task: None)
        for event in self._all(f"jobs/{job}/job_events", order_by="counter"):
            following.take(told(event) or {})
        if state.why and state.status != "successful":
            following.take({"kind": "line", "text": f"AWX job {job} {state.status}: {state.why}"})
        code = 0 if state.status == "successful" else 1
        following.judge({"status": state.status, "exit_code": code})

    # -- how it is done -------------------------------------------------------------------------

    def _begun(self, template: Mapping[str, Any], run: str) -> int | None:
        """The job that was begun for a run, when whoever began it could not keep its number."""
        look = {"order_by": "-id", "page_size": str(_RECENT)}
        found = self._ask("GET", f"job_templates/{template['id']}/jobs", params=look)
        for job in found.get("results") or ():
            if _variables(job.get("extra_vars")).get(MARK) == run:
                return int(job["id"])
        return None

    def _survey(self, template: Mapping[str, Any]) -> dict[str, str]:
        """Which variables the template asks for, and how."""
        if not template.get("survey_enabled"):
            return {}
        spec = self._ask("GET", f"job_templates/{template['id']}/survey_spec").get("spec") or ()
        return {str(each["variable"]): str(each["type"]) for each in spec}

    def _check_prompts(
        self, template: Mapping[str, Any], given: Mapping[str, Any], free: set[str]
    ) -> None:
        asks = {
            "limit": ("ask_limit_on_launch", "Limit"),
            "job_tags": ("ask_tags_on_launch", "Job tags"),
            "inventory": ("ask_inventory_on_launch", "Inventory"),
        }
        lacking = [word for key, (ask, word) in asks.items() if key in given and not template[ask]]
        if free and not template["ask_variables_on_launch"]:
            lacking.append("Variables")
        if lacking:
            raise RejectedError(
                f"AWX: job template {template['name']} does not ask for {', '.join(lacking)}",
                hint="turn on Prompt on launch beside them",
            )

    def _check_secrets(
        self, name: str, extravars: Mapping[str, Any], questions: Mapping[str, str]
    ) -> None:
        for key, value in extravars.items():
            if has_secrets(value) and questions.get(key) != "password":
                raise RejectedError(
                    f"AWX: job template {name} would show the secret {key} to whoever sees the job",
                    hint=f"ask for {key} in its survey, as a password, or give AWX a credential",
                )

    def _one(self, kind: str, name: str) -> dict[str, Any]:
        """What is called that, or has that number."""
        if name.isdigit():
            return self._ask("GET", f"{kind}/{name}")
        found = self._find(kind, name)
        if found is None:
            word = kind.removesuffix("s").replace("inventorie", "inventory").replace("_", " ")
            raise RejectedError(
                f"AWX of site {self._site} has no {word} called {name}, or shows none to us",
                hint="make it there, or name another: awx: in the site file",
            )
        return found

    def _find(self, path: str, name: str) -> dict[str, Any] | None:
        found = self._ask("GET", path, params={"name": name}).get("results") or [None]
        first: dict[str, Any] | None = found[0]
        return first

    def _all(self, path: str, **params: str) -> Iterator[dict[str, Any]]:
        page = 1
        while True:
            wanted = {**params, "page": str(page), "page_size": str(_PAGE)}
            answer = self._ask("GET", path, params=wanted)
            yield from answer.get("results") or ()
            if not answer.get("next"):
                return
            page += 1

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        import httpx  # noqa: PLC0415 - heavy

        what = f"AWX of site {self._site}: {method} {path}"
        try:
            answer = self._http.request(method, f"{path}/", json=body, params=params)
        except httpx.HTTPError as error:
            raise TransientError(f"{what}: {str(error) or 'the connection ended'}") from error
        if answer.status_code in _LATER:
            raise TransientError(f"{what}: answered {answer.status_code}")
        if not answer.is_success:
            raise _refusal(what, answer)
        found = answer.json() if answer.content else {}
        return found if isinstance(found, dict) else {}


def _client(site: str, its: Mapping[str, Any], lab: Path) -> httpx.Client:
    import httpx  # noqa: PLC0415 - heavy

    url, token = str(its.get("url") or ""), its.get("token")
    if not url.startswith("https://"):
        raise SetupError(
            f"site {site}: awx.url must begin with https://", hint="see docs/projects.md"
        )
    if not isinstance(token, Mapping):
        hint = "token: {env: AWX_TOKEN}, or {file: ~/.config/essaim/awx.token} with mode 0600"
        raise SetupError(f"site {site}: awx.token must say where the token is", hint=hint)
    context: ssl.SSLContext | bool = True
    if its.get("ca"):
        context = ssl.create_default_context(cafile=str(lab / Path(str(its["ca"])).expanduser()))
    return httpx.Client(
        base_url=f"{url.rstrip('/')}/api/v2/",
        headers={"Authorization": f"Bearer {read_secret(token, f'AWX of site {site}', lab)}"},
        timeout=_WITHIN,
        verify=context,
        trust_env=False,
    )


def _refusal(what: str, answer: httpx.Response) -> RejectedError | SetupError:
    try:
        said = answer.json()
    except ValueError:
        said = answer.text[:200]
    if answer.status_code in (401, 403):
        hint = "see whether the token is right, and what its owner may do there"
        return SetupError(f"{what}: {_worded(said)} ({answer.status_code})", hint=hint)
    return RejectedError(f"{what}: {_worded(said)} ({answer.status_code})")


def _worded(said: Any) -> str:
    """Write what AWX complains about on one line: `detail`, or what is wrong with each field."""
    if not isinstance(said, Mapping):
        return str(said)
    parts = [
        f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in said.items()
        if key != "detail"
    ]
    return "; ".join([*([str(said["detail"])] if "detail" in said else []), *parts])


def _variables(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
