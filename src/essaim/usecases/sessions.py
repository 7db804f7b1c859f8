"""Where somebody is logged in, and the end of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import UnknownError

if TYPE_CHECKING:
    from essaim.model.fleet import LoginSession
    from essaim.usecases.people import Session
    from essaim.usecases.services import Services


def sessions(services: Services, by: Session) -> list[LoginSession]:
    """List one's own sessions, the newest first."""
    return services.people.sessions(by.user.id)


def end_session(services: Services, by: Session, session_id: str) -> None:
    """End one of one's own sessions at once; UnknownError when one has no such session."""
    found = [each for each in sessions(services, by) if each.id == session_id]
    if not found:
        raise UnknownError(f"you have no session {session_id}", hint="essaim sessions lists them")
    for each in found:
        services.people.revoke(each.key)
