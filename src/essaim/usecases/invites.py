"""Invite codes, for administrators: make, list and revoke them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import ForbiddenError, InvalidError, Problem
from essaim.model.fleet import Role, User
from essaim.usecases import rosters
from essaim.usecases.credentials import digest, new_token

if TYPE_CHECKING:
    from essaim.model.invites import Invite
    from essaim.usecases.services import Services

MOST_USES = 1000
LONGEST = 365 * 86400  #: seconds a code may be valid


def invite(
    services: Services,
    by: User,
    *,
    uses: int = 1,
    seconds: int = 7 * 86400,
    project: str = "",
    roster: str = "",
) -> tuple[Invite, str]:
    """Make a code with which so many people may sign up; it is shown once.

    Their accounts belong to `project` and teach `roster`: rights for people who have no account
    yet travel with the code, never with a name.
    """
    _check_admin(by)
    problems = []
    if not 1 <= uses <= MOST_USES:
        problems.append(Problem(f"uses must be between 1 and {MOST_USES}"))
    if not 1 <= seconds <= LONGEST:
        problems.append(Problem(f"seconds must be between 1 and {LONGEST}"))
    if problems:
        raise InvalidError(problems)
    if roster:
        rosters.stored(services, roster)
    code = new_token("invite")
    kept = services.invites.add(
        digest(code), uses=uses, seconds=seconds, project=project, roster=roster, who=by.name
    )
    return kept, code


def invites(services: Services, by: User) -> list[Invite]:
    """List the codes with which somebody may still sign up."""
    _check_admin(by)
    return services.invites.list()


def revoke_invite(services: Services, by: User, key: str) -> None:
    """Let nobody sign up with a code any more; accounts made with it stay."""
    _check_admin(by)
    services.invites.revoke(key)


def _check_admin(by: User) -> None:
    if by.role is not Role.ADMIN:
        raise ForbiddenError("only administrators may invite people")
