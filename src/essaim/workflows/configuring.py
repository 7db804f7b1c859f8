"""Apply one role to one machine over SSH."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from essaim.config.secrets import SecretRef, resolve_secret
from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import RejectedError
from essaim.model.plans import Action, Applied
from essaim.model.roles import Role
from essaim.model.runs import Again, CommandLog
from essaim.model.stacks import Machine, Stack
from essaim.remote import roles
from essaim.remote.roles import Facts, Given, Record
from essaim.remote.ssh import Remote, Target
from essaim.workflows import settling
from essaim.workflows.tools import machine, tools, work

#: Seconds a role may keep a thread until it is ready.  Most are ready much sooner, and a pause
#: through the journal costs more than a short sleep.
LOOK = 5.0


def put(context: Context) -> dict[str, Any] | Again:
    """Install the packages that are missing and write the files that differ."""
    role = _role(context)
    if busy := settling.catch_up(context, machine(context)):
        return busy
    if role.ansible:
        return {}
    if settling.autonomous(work(context)) and (own := _by_itself(context, role)):
        return own
    context.note("files")
    given = facts(context, machine(context), role)
    changed = roles.put(tools(context).remote, _target(context), role, given, recorder(context))
    return {"changed": changed}


def run(context: Context) -> None:
    """Run the role's commands that are due, or its playbook."""
    role = _role(context)
    if context.outputs.get("put", {}).get("by itself"):
        return
    its, given = tools(context), facts(context, machine(context), role)
    if role.ansible:
        from essaim.remote import ansible  # noqa: PLC0415 - few roles are playbooks

        ansible.play(
            role,
            [(_target(context), given)],
            keyring=its.keyring,
            proxy=its.proxy(work(context).stack.site),
            record=recorder(context),
            note=context.note,
        )
        return
    roles.run_steps(its.remote, _target(context), role, given, recorder(context), context.note)


def ready(context: Context) -> Again | None:
    """Look whether the role does its work; if not yet, come back without holding a thread."""
    role = _role(context)
    if role.ready is None:
        return None
    context.note("waiting until ready")
    given, target = facts(context, machine(context), role), _target(context)
    look = LOOK * _patience(context)
    until = time.monotonic() + look
    while missing := roles.probe(
        tools(context).remote, target, role, given, recorder(context), within=look
    ):
        if time.monotonic() > until or context.elapsed > role.ready.within:
            break
        time.sleep(role.ready.every)
    else:
        return None
    if context.elapsed > role.ready.within:
        name = machine(context).name
        raise RejectedError(
            f"{name}: role {role.name} is not ready after {context.elapsed:.0f} s: {missing}",
            hint=f"see essaim logs {name}",
        )
    return Again(role.ready.every, note=f"not ready yet: {missing}")


def record(context: Context) -> None:
    """Remember what was applied, so that the next plan leaves it alone."""
    its, at, role = tools(context), work(context), _role(context)
    wanted = machine(context)
    seen = {m.name: m for m in its.driver(at.stack.site).observe(at.stack.name)}
    its.stacks.record_applied(
        Applied(
            machine=str(wanted.name),
            role=role.name,
            digest=context.run.input["digest"],
            needs=needs_digest(context, role),
            boot=seen[wanted.name].boot if wanted.name in seen else "",
        )
    )


# No undo: a role is applied again, never taken back; the machine is kept for a person to look at.
CONFIGURE = Workflow(
    "configure",
    tuple(
        Step(name=do.__name__, do=do, retry=Backoff(attempts=4), on_failure=OnFailure.STOP)
        for do in (put, run, ready, record)
    ),
)


def facts(context: Context, of: Machine, role: Role) -> Facts:
    """Everything the role's templates may read, with secrets resolved and needs read live."""
    at = work(context)
    needs = {name: _need(context, name, provider) for name, provider in role.needs.items()}
    return facts_of(at.stack, at.lab, of, role, needs)


def facts_of(stack: Stack, lab: Path, of: Machine, role: Role, needs: Mapping[str, Given]) -> Facts:
    """Everything the role's templates may read, with secrets resolved and needs as given."""
    hidden: list[str] = []
    variables = {**role.vars, **stack.vars.get(role.name, {})}
    return Facts(
        stack=stack.name,
        network=stack.network.cidr,
        machine=of,
        members={
            key: [m for m in stack.machines if carried in m.roles]
            for key, carried in role.members.items()
        },
        vars={key: _resolved(value, lab, hidden) for key, value in variables.items()},
        needs=needs,
        hidden=tuple(hidden),
    )


def needs_digest(context: Context, role: Role) -> str:
    """Digest the values a role is given by others, telling nothing about them."""
    given = {name: _need(context, name, provider) for name, provider in role.needs.items()}
    return roles.needs_digest(given, tools(context).keyring.digest_key())


def recorder(context: Context) -> Record:
    """Keep what commands print, under the run and step they belong to."""
    its, at = tools(context), context.run

    def keep(**log: Any) -> None:
        its.logs.add([CommandLog(run=at.id, step=context.step, **log)])

    return keep


def _need(context: Context, name: str, provider: str) -> Given:
    """Read a value from the machine that provides it, once for each apply."""
    its, at = tools(context), work(context)

    def read() -> Given:
        return read_need(
            at.stack,
            name,
            provider,
            remote=its.remote,
            target=lambda of: its.target(at.stack.site, of),
            own=lambda of, role: facts(context, of, role),
        )

    return its.given((context.run.parent, provider, name), read)


def read_need(
    stack: Stack,
    name: str,
    provider: str,
    *,
    remote: Remote,
    target: Callable[[Machine], Target],
    own: Callable[[Machine, Role], Facts],
) -> Given:
    """Read a value from the first machine that carries the role which provides it."""
    carrier = next((m for m in stack.machines if provider in m.roles), None)
    if carrier is None:
        raise RejectedError(f"nobody in {stack.name} carries the role {provider}")
    role = stack.roles[provider]
    filled = own(carrier, role) if role.provides[name].value is not None else None
    return roles.provided(remote, target(carrier), role, name, filled)


def _resolved(value: Any, lab: Path, hidden: list[str]) -> Any:
    """Replace references by secrets, and note what must not be shown."""
    if isinstance(value, SecretRef):
        secret = resolve_secret(value.name, lab)
        hidden.append(secret)
        return secret
    if isinstance(value, dict):
        return {key: _resolved(inner, lab, hidden) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(inner, lab, hidden) for inner in value]
    return value


def _by_itself(context: Context, role: Role) -> dict[str, Any] | Again | None:
    """Leave a role to a machine that has just been given it; otherwise take it from the machine."""
    at, target, digest = work(context), _target(context), context.run.input["digest"]
    new = any(
        change.key == context.run.input["change"] and change.action is Action.ADD
        for change in at.plan.changes
    )
    busy = settling.settle(context, machine(context), strict=False)
    if busy:
        return busy
    own = settling.applied_by_itself(context, target, role.name, digest)
    if own and new:
        return {"by itself": True}
    if not own:
        settling.leave_to_us(context, target, role.name)
    return None


def _role(context: Context) -> Role:
    role = work(context).stack.roles[context.run.input["role"]]
    times = _patience(context)
    return role if times == 1 else settling.unhurried(role, times)


def _patience(context: Context) -> float:
    return settling.patience(tools(context).driver(work(context).stack.site))


def _target(context: Context) -> Target:
    return tools(context).target(work(context).stack.site, machine(context))
