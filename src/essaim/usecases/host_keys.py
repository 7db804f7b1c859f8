"""Refuse a plan that makes machines whose host key nobody could know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import InvalidError, Problem
from essaim.model.machines import HostKeySource
from essaim.workflows import host_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from essaim.model.plans import Change
    from essaim.model.stacks import Stack
    from essaim.usecases.services import Services

#: Changes that make a machine, and then connect to it.
_MAKING = frozenset({"raise", "rebuild", "host", "rehost"})


def check_host_keys(services: Services, stack: Stack, changes: Iterable[Change]) -> None:
    """InvalidError when a machine would be made that we could never safely connect to."""
    made = {change.machine for change in changes if change.verb in _MAKING}
    images = {machine.image for machine in stack.machines if str(machine.name) in made}
    if not images or host_keys.trusts_first(stack.site):
        return
    driver = services.driver(stack.site)
    found = [host_keys.access(driver, stack.images[name]) for name in sorted(images)]
    refused = [
        host_keys.refusal(stack.site, one) for one in found if one.source is HostKeySource.SHOWN
    ]
    if refused:
        _, hint = refused[0]
        raise InvalidError([Problem(what) for what, _ in refused], hint=hint)
