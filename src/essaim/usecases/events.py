"""Read along with what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import ForbiddenError
from essaim.model.fleet import Role

if TYPE_CHECKING:
    from essaim.model.fleet import Event, User
    from essaim.usecases.services import Services

#: Told at once; who has more to hear asks again.
SOME = 200


def since(
    services: Services,
    by: User,
    after: int,
    *,
    all: bool = False,  # noqa: A002 - as asked
) -> list[Event]:
    """List what happened to one's leases after an event, the oldest first, some at a time.

    Operators may ask for everything.  Nothing ever appears before an event that was listed.
    """
    _may(by, everything=all)
    return services.events.since(after, user=None if all else by.id, limit=SOME)


def last(services: Services, by: User, *, all: bool = False) -> int:  # noqa: A002 - as asked
    """Return the newest event, from which to read along."""
    _may(by, everything=all)
    return services.events.last()


def _may(by: User, *, everything: bool) -> None:
    if everything and by.role is Role.MEMBER:
        raise ForbiddenError("only operators may hear everything")
