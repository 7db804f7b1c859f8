"""Whether a cluster answers and lets us in, found out within seconds."""

from __future__ import annotations

import time
from contextlib import closing

from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.refusals import Refusal
from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import SiteAwayError

#: Seconds to connect to all servers of a site together, and for the answer of one.
_CONNECT, _ANSWER = 8.0, 8.0
#: Seconds one server has at least.
_LEAST = 1.5
_UNAUTHORISED, _BROKEN = 401, 500
#: Seconds until a server is asked again that answered, but with an error of its own.
_AGAIN = (0.2, 0.8)


def hurried(settings: Settings) -> Api:
    """The API for a question that a person waits for."""
    return Api(settings, timeout=(max(_CONNECT / len(settings.urls), _LEAST), _ANSWER))


def check_reachable(settings: Settings) -> None:
    """SiteAwayError when no server of the site answers, or the account is refused."""
    site = settings.site
    with closing(hurried(settings)) as api:
        try:
            _ask(api)
        except ApiError as error:
            if error.kind is Refusal.LOST:
                said = error.text.replace(" cannot be reached", "").replace(
                    " does not answer", ": no answer"
                )
                what = f"site {site} cannot be reached: {said}"
                hint = f"see whether it runs, and the url in its file: essaim doctor --site {site}"
                raise SiteAwayError(what, hint=hint) from error
            if error.code == _UNAUTHORISED:
                refused = error.ours(site, "logging in")
                what = f"site {site} refuses the account {settings.who}: {error.text}"
                raise SiteAwayError(what, hint=refused.hint) from error
            # Whoever is refused something else was heard.


def _ask(api: Api) -> None:
    """Ask for the version; a proxy that restarts may answer once or twice that it cannot."""
    for pause in _AGAIN:
        try:
            api.ask_once("version")
        except ApiError as error:
            if error.kind is not Refusal.LOST or error.code < _BROKEN:
                raise
        else:
            return
        time.sleep(pause)
    api.ask_once("version")
