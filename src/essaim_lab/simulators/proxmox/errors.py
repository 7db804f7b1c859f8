"""What Proxmox VE answers when it refuses."""

from __future__ import annotations

from collections.abc import Mapping

BAD_REQUEST, UNAUTHORISED, FORBIDDEN, BROKEN, MISSING = 400, 401, 403, 500, 501
NO_ROUTE = 595  #: its proxy could not reach the node


class PveError(Exception):
    """A refusal: its code, its sentence, and what was wrong with which parameter."""

    def __init__(
        self, message: str, code: int = BROKEN, errors: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.errors = dict(errors or {})


def refused_parameters(errors: Mapping[str, str]) -> PveError:
    """Say which parameters were wrong."""
    return PveError("Parameter verification failed.", BAD_REQUEST, errors)


def refused_permission(what: str = "") -> PveError:
    """Say which privilege is missing, and where."""
    return PveError(f"Permission check failed{f' ({what})' if what else ''}", FORBIDDEN)
