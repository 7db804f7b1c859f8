"""Whether machines can configure themselves: what they need must be known before they exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.config.drivers import DRIVERS
from essaim.config.problems import Problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.config.roles import ReadRole
    from essaim.config.schema import StackSchema
    from essaim.model.stacks import Site

_INSTEAD = "say bootstrap: ssh"


def check_autonomy(
    schema: StackSchema, site: Site | None, roles: Mapping[str, ReadRole], problems: Problems
) -> None:
    """Note everything that `bootstrap: cloud-init` cannot do for this stack."""
    at = ("bootstrap",)
    if site is not None and not DRIVERS[site.driver].seeds:
        can = ", ".join(name for name, kind in DRIVERS.items() if kind.seeds)
        what = f"machines of the driver {site.driver} have no cloud-init"
        problems.add(at, what, f"{_INSTEAD}, or choose a site of another driver: {can}")
    for name, group in schema.topology.items():
        if group.after:
            what = f"with bootstrap: cloud-init machines begin at once, and {name} would not come"
            problems.add(
                ("topology", name, "after"), f"{what} after {', '.join(group.after)}", _INSTEAD
            )
    carried = {role for group in schema.topology.values() for role in group.roles}
    for name, read in roles.items():
        if name in carried:
            inner = Problems.of_file(read.document)
            _check_role(read, roles, inner)
            problems.found += inner.found


def _check_role(read: ReadRole, roles: Mapping[str, ReadRole], problems: Problems) -> None:
    role = read.role
    if role.ansible is not None:
        what = f"with bootstrap: cloud-init the role {role.name} cannot be a playbook"
        problems.add(("ansible",), f"{what}: nobody is there to play it", _INSTEAD)
    for key, other in role.needs.items():
        provide = roles[other].role.provides.get(key) if other in roles else None
        if provide is None or provide.command is None or provide.random is not None:
            continue
        problems.add(
            ("needs", key),
            f"with bootstrap: cloud-init {role.name} cannot be given {key}: {other} reads it with "
            "a command on a machine that does not exist yet",
            f"{_INSTEAD}, or let {other} provide it as a value, or as a file of random text: "
            f"provides: {{{key}: {{random: /path, …}}}}",
        )
