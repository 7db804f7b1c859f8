"""Makes what leases need."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.workflows.lending import Accounts, Lending


def make_lending(app: App) -> Lending:
    """Make what the steps of leases act through."""
    from essaim.remote.accounts import NativeAccounts
    from essaim.store.homes import Homes
    from essaim.workflows.lending import Lending

    native = NativeAccounts(app.remote)
    return Lending(
        fleet=app.fleet,
        leases=app.leases,
        events=app.events,
        accounts=_playbook(app) if app.provisioner == "ansible" else native,
        helper=native,
        journal=app.journal,
        remote=app.remote,
        keyring=app.keyring,
        homes=Homes(app.homes),
        dial=app.ways.dial,
        lead=app.ways.lead,
    )


def _playbook(app: App) -> Accounts:
    """Accounts made by a playbook, the one of the library unless another is named."""
    from essaim.remote.accounts import PLAYBOOK, AnsibleAccounts
    from essaim.remote.ansible import find_program

    playbook = app.playbook or PLAYBOOK
    if not playbook.is_file():
        raise SetupError(
            f"there is no playbook {playbook}", hint="ESSAIM_PLAYBOOK names the one to use"
        )
    find_program()
    log = logging.getLogger(__name__)
    return AnsibleAccounts(
        app.remote,
        app.keyring,
        record=lambda **its: log.debug("%(machine)s: %(command)s", its),
        note=log.debug,
        playbook=playbook,
    )
