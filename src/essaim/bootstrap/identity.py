"""Reads who may sign up and log in, and makes the parts that this needs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.bootstrap.stores import Stores
from essaim.model.client_networks import parse_networks
from essaim.model.errors import SetupError
from essaim.model.invites import SignupMode
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from essaim.store.breached_passwords import BreachedPasswords
    from essaim.store.invites import Invites
    from essaim.store.people import People

#: Whose word about where a request comes from is taken when nothing else is said: a proxy on the
#: same computer.
TRUSTED_PROXIES = "127.0.0.1 ::1"


class Identity(Stores):
    """People, and what sign-up and login are told by the environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.signup_mode = _mode(environ.get("ESSAIM_SIGNUP") or SignupMode.INVITE.value)
        said = environ.get("ESSAIM_TRUSTED_PROXIES") or TRUSTED_PROXIES
        try:
            self.trusted_proxies = parse_networks("" if said == "none" else said)
        except ValueError as error:
            raise SetupError(
                f"ESSAIM_TRUSTED_PROXIES: {error}",
                hint="list networks such as 10.0.0.0/8 192.0.2.7 fd00::/8, or say none",
            ) from error
        self._breached = environ.get("ESSAIM_BREACHED_PASSWORDS") or ""

    @functools.cached_property
    def people(self) -> People:
        """People and their sessions."""
        from essaim.store.people import People

        return People(self.database)

    @functools.cached_property
    def invites(self) -> Invites:
        """Codes with which people sign up."""
        from essaim.store.invites import Invites

        return Invites(self.database)

    @functools.cached_property
    def breached(self) -> BreachedPasswords | None:
        """Passwords that were stolen somewhere; None when no list is named."""
        if not self._breached:
            return None
        from essaim.store.breached_passwords import BreachedPasswords

        return BreachedPasswords(Path(self._breached).absolute())


def _mode(said: str) -> SignupMode:
    try:
        return SignupMode(said)
    except ValueError:
        raise SetupError(
            f"ESSAIM_SIGNUP={said}: unknown sign-up mode",
            hint=meant(said, [each.value for each in SignupMode], kind="there are"),
        ) from None
