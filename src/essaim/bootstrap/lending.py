"""Makes what leases need."""

from __future__ import annotations

import ipaddress
import logging
from functools import partial
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.bootstrap import App
    from essaim.workflows.lending import Accounts, Lending
    from essaim.workflows.schooling import School


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
        homes=Homes(app.homes),
        gateway_keys=partial(gateway_keys, app),
        sources=_networks(app.gateway_sources),
        forwarding=app.forwarding != "none",
        dial=app.ways.dial,
        lead=app.ways.lead,
    )


def make_school(app: App) -> School:
    """Make what the steps of students' machines act through."""
    from essaim.workflows.schooling import School

    return School(
        rosters=app.rosters,
        journal=app.journal,
        names=app.names,
        addresses=app.addresses,
        desktops=app.desktops,
        gateway_keys=partial(gateway_keys, app),
    )


def _networks(said: Sequence[str]) -> Sequence[str]:
    """Give them back; SetupError when one is neither an address nor a network."""
    for each in said:
        try:
            ipaddress.ip_network(each)
        except ValueError as exc:
            raise SetupError(
                f"ESSAIM_GATEWAY_SOURCES: {exc}",
                hint="say addresses or networks, such as 10.0.0.5 10.1.0.0/24",
            ) from exc
    return said


def gateway_keys(app: App) -> list[str]:
    """Give the public keys with which gateways log in to the accounts of leases and students."""
    from essaim.usecases.keys import public_keys, same_keys

    known = public_keys(app, "lease")
    if not known and app.kind == "command":
        # Somebody's own control plane, before its first `serve`: that is in this folder too.
        same_keys(app, ["lease"])
        known = public_keys(app, "lease")
    return known


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
