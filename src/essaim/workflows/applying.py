"""Carry out a plan: one child run for each change, each waiting only for what it needs."""

from __future__ import annotations

from collections.abc import Iterable

from essaim.config.serial import stack_to_json
from essaim.engine.workflow import Context, OnFailure, Step, Workflow
from essaim.model.errors import StuckError
from essaim.model.machines import Networks
from essaim.model.plans import Action, Change
from essaim.model.runs import Again, NewRun, Run, RunState, child_id
from essaim.plan.digest import RoleDigests
from essaim.workflows.configuring import needs_digest
from essaim.workflows.tools import Work, tools, work

#: Children wake their parent when they end; this is only for a wake-up that got lost.
LOOK_AGAIN = 5.0

#: Changes the parent does itself.
OWN = frozenset({"open", "reopen", "close"})


def open_network(context: Context) -> None:
    """Record the stack and make its network, or make that anew when its shape changed."""
    its, at = tools(context), work(context)
    its.stacks.put_stack(at.stack.name, {"stack": stack_to_json(at.stack), "lab": str(at.lab)})
    driver = its.driver(at.stack.site)
    verbs = {change.verb for change in at.plan.changes}
    if not isinstance(driver, Networks) or "close" in verbs:
        return
    current = driver.network(at.stack.name)
    # Asked of the world, not of the plan: a second try must not close what the first one opened.
    if "reopen" in verbs and current is not None and current.cidr != at.stack.network.cidr:
        driver.close_network(at.stack.name)
        its.stacks.forget_machines(at.stack.name)
    driver.open_network(at.stack.name, at.stack.network)


def spawn(context: Context) -> None:
    """Add one child run for each change of the plan."""
    at = work(context)
    context.spawn(list(_children(context, at, at.plan.changes)))


def join(context: Context) -> Again | None:
    """Wait for the children; when none can move any more and some are not done, stop."""
    children = context.children()
    if any(run.state in (RunState.READY, RunState.RUNNING) for run in children):
        return Again(LOOK_AGAIN)
    broken = [run for run in children if run.state is not RunState.DONE]
    if broken:
        raise StuckError(_summary(children, broken))
    return None


def settle(context: Context) -> Again | None:
    """Apply again the roles that were given values which have changed since."""
    busy = join(context)
    if busy:
        return busy
    at = work(context)
    stale = list(_stale(context, at))
    context.spawn(list(_children(context, at, stale)))
    # Those may provide values in their turn: look once more when they are done.
    return Again(0) if stale else None


def close(context: Context) -> None:
    """When the plan says so, leave nothing of the stack but its journal."""
    its, at = tools(context), work(context)
    if not any(change.verb == "close" for change in at.plan.changes):
        return
    driver = its.driver(at.stack.site)
    if isinstance(driver, Networks):
        driver.close_network(at.stack.name)
    its.keyring.forget(at.stack.name)
    its.stacks.drop_stack(at.stack.name)


# No undo anywhere: each child undoes its own work, and a plan that was half carried out is
# continued by the next one, made from what is then seen.
APPLY = Workflow(
    "apply",
    (
        Step(name="open", do=open_network, on_failure=OnFailure.STOP),
        Step(name="spawn", do=spawn, on_failure=OnFailure.STOP),
        Step(name="join", do=join, on_failure=OnFailure.STOP),
        Step(name="settle", do=settle, on_failure=OnFailure.STOP),
        Step(name="close", do=close, on_failure=OnFailure.STOP),
    ),
)


def _children(context: Context, at: Work, changes: Iterable[Change]) -> Iterable[NewRun]:
    own = {change.key for change in at.plan.changes if change.verb in OWN}
    for change in changes:
        if change.verb in OWN:
            continue
        yield NewRun(
            id=child_id(context.run.id, change.key),
            workflow=change.verb,
            subject=f"{change.machine or at.stack.name}:{change.role or change.key}"
            if change.role or not change.machine
            else change.machine,
            input={
                "plan": context.run.input["plan"],
                "site": at.stack.site.name,
                "change": change.key,
                "machine": change.machine,
                "role": change.role,
                "digest": change.digest,
            },
            parent=context.run.id,
            waits_for=tuple(
                child_id(context.run.id, key) for key in change.waits if key not in own
            ),
            who=context.run.who,
        )


def _stale(context: Context, at: Work) -> Iterable[Change]:
    """Roles left out of the plan whose providers were in it, and now provide something else."""
    its = tools(context)
    touched = {change.role for change in at.plan.changes if change.verb == "configure"}
    if not touched:
        return
    spawned = {run.id for run in context.children()}
    applied = its.stacks.applied(at.stack.name)
    digests = RoleDigests(at.stack)
    for machine in at.stack.machines:
        for role in [at.stack.roles[name] for name in machine.roles]:
            key = f"{machine.name.machine}.{role.name}"
            before = applied.get((str(machine.name), role.name))
            fresh = child_id(context.run.id, key) in spawned
            if fresh or before is None or not touched & set(role.needs.values()):
                continue
            if needs_digest(context, role) != before.needs:
                yield Change(
                    key=key,
                    action=Action.CHANGE,
                    verb="configure",
                    machine=str(machine.name),
                    role=role.name,
                    reason="values it needs changed",
                    digest=digests.of(machine, role.name),
                )


def _summary(children: list[Run], broken: list[Run]) -> str:
    failed = [run for run in broken if run.state is not RunState.WAITING]
    waiting = len(broken) - len(failed)
    lines = [f"{len(failed)} of {len(children)} changes failed"]
    lines += [f"  {run.subject}: {run.error}" for run in failed]
    if waiting:
        lines.append(f"  {waiting} more wait for them")
    return "\n".join(lines)
