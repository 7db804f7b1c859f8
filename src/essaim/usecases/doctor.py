"""Examine the computer Essaim runs on, or a site that machines come from."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from essaim.drivers.doctor import Check
from essaim.model.errors import EssaimError
from essaim.model.stacks import Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.usecases.services import Services

#: Below this an image build would fail half way.
FREE_DISK = 3 * 2**30


@runtime_checkable
class Examines(Protocol):
    """A driver that can say what it finds where its machines come from."""

    def doctor(self) -> Sequence[Check]:
        """List what was looked at."""


def examine(services: Services) -> list[Check]:
    """Look at everything a first `up` will need."""
    return list(_checks(services))


def examine_site(services: Services, name: str, lab: str) -> list[Check]:
    """Look at what this account may and may not do at a site of a lab.

    UnknownError when the lab has no such site.
    """
    from essaim.config.sites import find_site  # noqa: PLC0415 - Hydra takes a second to import

    site = find_site(name, lab)
    try:
        found = list(_driver(services, site))
    except EssaimError as error:
        # Settings so wrong, or so much missing here, that nothing can even be looked at.
        return [Check("site", ok=False, text=_words(error))]
    said = Check("site", ok=True, text=f"{name} is made of {site.driver} machines")
    return [said, *found]


def _checks(services: Services) -> Iterator[Check]:
    yield Check("python", ok=True, text=sys.version.split()[0])
    for tool, package in (("mmdebstrap", "mmdebstrap"), ("ssh", "openssh-client")):
        path = shutil.which(tool)
        yield Check(tool, ok=bool(path), text=path or f"sudo apt-get install {package}")
    yield _database(services)
    yield _disk(services)
    yield from _driver(services, Site(name="local", driver="sandbox"))


def _driver(services: Services, site: Site) -> Iterator[Check]:
    driver = services.driver(site)
    if isinstance(driver, Examines):
        yield from driver.doctor()


def _database(services: Services) -> Check:
    try:
        stacks = services.stacks.list_stacks()
    except EssaimError as error:
        return Check("database", ok=False, text=_words(error))
    return Check("database", ok=True, text=f"answers; {len(stacks)} stacks")


def _disk(services: Services) -> Check:
    place = services.home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free at {place}"
    return Check("disk", ok=free >= FREE_DISK, text=text)


def _words(error: EssaimError) -> str:
    return f"{error.what}; {error.hint}" if error.hint else error.what
