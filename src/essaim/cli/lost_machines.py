"""Machines whose site does not answer: said before anything is begun, and given up when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from essaim.cli.asking import agree
from essaim.cli.output import say
from essaim.cli.tongue import in_their_language, said, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.bootstrap import App
    from essaim.model.stacks import Site
    from essaim.usecases.lost_machines import LeftBehind


def check_site(control: App, site: Site, command: str = "") -> None:
    """See that a site answers, before anything is planned; its error says what to do."""
    from essaim.model.errors import SiteAwayError
    from essaim.usecases.lost_machines import check_reachable

    try:
        check_reachable(control, site)
    except SiteAwayError as error:
        if not command:
            raise
        never = said("site.never", command=command)
        hint = f"{in_their_language(error.hint)}\n  → {never}"
        raise SiteAwayError(error.what, hint=hint) from error


def forget_roster(control: App, roster: str, logins: Sequence[str], *, yes: bool) -> None:
    """Give up machines that are lost, after showing what may be left of them."""
    from essaim.usecases import lost_machines as use
    from essaim.usecases import rosters

    site = rosters.stored(control, roster).site.name
    rosters.clear(control, roster)
    lost = use.of_roster(control, roster, logins)
    show_left(lost, site)
    agree(said("students.ask.forget", count=len(lost), site=site), yes=yes)
    for what in use.forget_roster(control, roster, logins):
        tell("students.left_server", what=in_their_language(what))
    tell("students.forgotten", roster=roster, count=len(lost))


def show_left(lost: Sequence[LeftBehind], site: str) -> None:
    """List what may be left at a site, for a person to delete by hand."""
    if lost:
        tell("students.left_site", site=site)
    for each in lost:
        say(f"  {each}")


def forget_stack(control: App, name: str, *, yes: bool) -> dict[str, Any]:
    """Give up a stack that is lost, after showing what may be left of it; for programs."""
    from essaim.usecases import lost_machines as use
    from essaim.usecases import stacks

    stack, _lab = stacks.stored_stack(control, name)
    lost = use.of_stack(control, name)
    stacks.give_way(control, name)
    show_left(lost, stack.site.name)
    agree(said("students.ask.forget", count=len(lost), site=stack.site.name), yes=yes)
    use.forget_stack(control, name)
    tell("students.forgotten", roster=name, count=len(lost))
    left = [{"machine": each.machine, "address": each.address, **each.ids} for each in lost]
    return {"stack": name, "forgotten": left, "state": "done", "exit_code": 0}
