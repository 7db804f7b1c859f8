"""Learn the host keys of machines that were not given one, before anybody connects to them.

Where the driver reads the key inside the machine, that one is pinned.  Where nobody vouches for it,
the key the machine shows first is pinned if the site says `host_keys: first`, and none otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.model.machines import HostKeyAccess, HostKeys, HostKeySource, Slow
from essaim.model.runs import Again
from essaim.remote.meeting import shown_key
from essaim.workflows.tools import address_from_here, tools, work

if TYPE_CHECKING:
    from essaim.engine.workflow import Context
    from essaim.model.machines import Driver
    from essaim.model.stacks import Image, Machine, Site

_GIVEN = HostKeyAccess(source=HostKeySource.GIVEN)
_PAUSE = 1.0
#: Seconds to wait for a key, where the driver does not say how long its machines boot.
_WITHIN = 60.0
#: What a site file says to believe the key that a machine shows first.
FIRST = "host_keys: first"


def access(driver: Driver, image: Image) -> HostKeyAccess:
    """How the host keys of machines made from that image become known."""
    return driver.host_key_access(image) if isinstance(driver, HostKeys) else _GIVEN


def trusts_first(site: Site) -> bool:
    """Whether the site's file says to believe the key that a machine shows first."""
    return site.settings.get("host_keys") == "first"


def refusal(site: Site, found: HostKeyAccess) -> tuple[str, str]:
    """Say why machines of a site cannot be known by their host key, and what to do."""
    hint = f"{found.hint}; or {FIRST}, to believe the key that a machine shows first"
    return f"site {site.name}: no way to know the host keys of {found.reason}", hint


def learn(context: Context, of: Machine) -> Again | None:
    """Pin the host key of a machine that makes its own; nothing where that is done."""
    its, at = tools(context), work(context)
    site, driver = at.stack.site, its.driver(at.stack.site)
    if not isinstance(driver, HostKeys) or its.keyring.pinned(of.name):
        return None
    found = driver.host_key_access(at.stack.images[of.image])
    if found.source is HostKeySource.GIVEN:
        return None
    if found.source is HostKeySource.SHOWN and not trusts_first(site):
        what, hint = refusal(site, found)
        raise RejectedError(f"{of.name}: {what}", hint=hint)
    context.note(_waits_for(found))
    try:
        key = _key(driver, site, of, found)
    except TransientError as error:
        if context.elapsed < (driver.answers_within() if isinstance(driver, Slow) else _WITHIN):
            return Again(_PAUSE, note=_waits_for(found))
        what = f"{of.name}: no host key in {context.elapsed:.0f} s: {error.what}"
        raise TransientError(what, hint=error.hint) from error
    its.keyring.pin(of.name, key)
    return None


def _waits_for(found: HostKeyAccess) -> str:
    agent = found.source is HostKeySource.READ
    return "waiting for its guest agent" if agent else "waiting for SSH"


def _key(driver: HostKeys, site: Site, of: Machine, found: HostKeyAccess) -> str:
    """The key as read in the machine, or where the site trusts it, as the machine shows it."""
    if found.source is HostKeySource.READ:
        try:
            return driver.read_host_key(of.name)
        except EssaimError:
            # A guest agent may be configured and not installed: such sites need not wait for it.
            if not trusts_first(site):
                raise
    return _shown(site, of)


def _shown(site: Site, of: Machine) -> str:
    address = address_from_here(site, of)
    key = shown_key(address)
    if not key:
        raise TransientError(f"nothing at {address} shows one")
    return key


def learn_again(context: Context, of: Machine) -> bool:
    """Read a key that differs from the pinned one; False when there is no other to believe.

    A template's own key may be read before the machine has replaced it at its first boot.  A key
    that was only shown is never replaced.
    """
    its, at = tools(context), work(context)
    driver = its.driver(at.stack.site)
    if not isinstance(driver, HostKeys):
        return False
    before = its.keyring.pinned(of.name)
    found = driver.host_key_access(at.stack.images[of.image])
    if not before or found.source is not HostKeySource.READ:
        return False
    try:
        key = driver.read_host_key(of.name)
    except EssaimError:
        return False
    if key == before:
        return False
    its.remote.drop(of.name)
    its.keyring.pin(of.name, key)
    return True
