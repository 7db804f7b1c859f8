"""What machines that configure themselves are given, before any of them exists."""

from __future__ import annotations

from typing import Any

from essaim.engine.workflow import Context
from essaim.model.errors import RejectedError
from essaim.model.stacks import Machine
from essaim.plan.digest import RoleDigests
from essaim.remote.render import render_text
from essaim.remote.roles import Given
from essaim.remote.seeds_roles import Wanted, role_data
from essaim.workflows.configuring import facts_of
from essaim.workflows.settling import autonomous, patience, unhurried
from essaim.workflows.tools import tools, work


def user_data(context: Context, of: Machine) -> dict[str, Any]:
    """Give what makes a new machine apply its roles to itself; nothing when we do it over SSH."""
    at = work(context)
    return role_data(_wanted(context, of)) if autonomous(at) else {}


def _wanted(context: Context, of: Machine) -> list[Wanted]:
    at, digests = work(context), RoleDigests(work(context).stack)
    times = patience(tools(context).driver(at.stack.site))
    wanted = []
    for role in (at.stack.roles[name] for name in of.roles):
        needs = {key: _known(context, key, provider) for key, provider in role.needs.items()}
        wanted.append(
            Wanted(
                role=unhurried(role, times),
                facts=facts_of(at.stack, at.lab, of, role, needs),
                digest=digests.of(of, role.name),
                drawn={
                    provide.random: _drawn(context, role.name, key)
                    for key, provide in role.provides.items()
                    if provide.random is not None
                },
            )
        )
    return wanted


def _known(context: Context, name: str, provider: str) -> Given:
    """Give a value that a role will provide, before there is a machine that carries it."""
    at = work(context)
    role, carrier = at.stack.roles[provider], at.carrier(provider)
    provide = role.provides[name]
    if provide.random is not None:
        return Given(_drawn(context, provider, name), provide.secret)
    if provide.value is None or carrier is None:
        raise RejectedError(
            f"{at.stack.name}: {name} of {provider} cannot be known before its machine exists",
            hint="say bootstrap: ssh",
        )
    needs = {key: _known(context, key, other) for key, other in role.needs.items()}
    facts = facts_of(at.stack, at.lab, carrier, role, needs)
    return Given(render_text(role, provide.value, facts, where=f"value {name}"), provide.secret)


def _drawn(context: Context, role: str, name: str) -> str:
    return tools(context).keyring.drawn(work(context).stack.name, f"{role}/{name}")
