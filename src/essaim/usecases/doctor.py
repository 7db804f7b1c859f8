"""Examine the computer Essaim runs on, or a site that machines come from."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from essaim.drivers.doctor import Check
from essaim.model.errors import EssaimError, UnknownError
from essaim.model.stacks import Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.model.school import Directory
    from essaim.model.stacks import Image
    from essaim.usecases.services import Services

#: Below this an image build would fail half way.
FREE_DISK = 3 * 2**30
#: A stack, or a group, that nobody has.
_NOBODY = "essaim-doctor"


@runtime_checkable
class Examines(Protocol):
    """A driver that can say what it finds where its machines come from."""

    def doctor(self) -> Sequence[Check]:
        """List what was looked at."""


@runtime_checkable
class ExaminesImages(Protocol):
    """A driver that also looks for what machines are made from, which the site has."""

    def examine(self, images: Sequence[Image]) -> Sequence[Check]:
        """List what was looked at, for machines made from these images."""


def examine(services: Services) -> list[Check]:
    """Look at everything a first `up` will need."""
    return list(_checks(services))


def examine_site(services: Services, name: str, lab: str) -> list[Check]:
    """Look at what this account may and may not do at a site of a lab.

    UnknownError when the lab has no such site.
    """
    from essaim.config.site_images import site_images  # noqa: PLC0415 - likewise
    from essaim.config.sites import find_site  # noqa: PLC0415 - Hydra takes a second to import

    site = find_site(name, lab)
    images = [*site_images(name, lab), *_roster_images(services, name)]
    try:
        found = list(_driver(services, site, images))
    except EssaimError as error:
        # Settings so wrong, or so much missing here, that nothing can even be looked at.
        return [Check("site", ok=False, text=_words(error))]
    said = Check("site", ok=True, text=f"{name} is made of {site.driver} machines")
    return [said, *found, *_servers(services, site)]


def _roster_images(services: Services, site: str) -> list[Image]:
    """What the rosters that live on a site are made from."""
    from essaim.config.rosters import roster_from_json  # noqa: PLC0415 - Hydra again

    bodies = (services.rosters.get(name) for name in services.rosters.names())
    known = [roster_from_json(body) for body in bodies if body is not None]
    return [roster.image for roster in known if roster.site.name == site]


def _servers(services: Services, site: Site) -> Iterator[Check]:
    """Whether the servers that a site names answer: each is asked for what it has."""
    asked: Sequence[tuple[str, Callable[[Site], Any], Callable[[Any], str]]] = (
        ("dns", services.names, lambda server: f"{len(server.named())} names"),
        ("dhcp", services.addresses, lambda server: f"{len(server.admitted())} hosts"),
        ("desktop", services.desktops, lambda server: f"{len(server.published())} desktops"),
        ("directory", services.directory, _ask_directory),
    )
    for name, make, ask in asked:
        try:
            server = make(site)
            if server is not None:
                yield Check(name, ok=True, text=f"answers; {ask(server)}")
        except EssaimError as error:
            yield Check(name, ok=False, text=_words(error))


def _ask_directory(directory: Directory) -> str:
    with suppress(UnknownError):  # that there is no such group is an answer
        directory.members(_NOBODY)
    return "it can be searched"


def _checks(services: Services) -> Iterator[Check]:
    yield Check("python", ok=True, text=sys.version.split()[0])
    for tool, package in (("mmdebstrap", "mmdebstrap"), ("ssh", "openssh-client")):
        path = shutil.which(tool)
        yield Check(tool, ok=bool(path), text=path or f"sudo apt-get install {package}")
    yield _database(services)
    yield _disk(services)
    yield from _driver(services, Site(name="local", driver="sandbox"))


def _driver(services: Services, site: Site, images: Sequence[Image] = ()) -> Iterator[Check]:
    driver = services.driver(site)
    if isinstance(driver, ExaminesImages):
        alike = {json.dumps(image.settings, sort_keys=True, default=str): image for image in images}
        yield from driver.examine(list(alike.values()))
    elif isinstance(driver, Examines):
        yield from driver.doctor()
    else:
        seen = driver.observe(_NOBODY)  # whatever it finds, it had to ask the site
        yield Check("answers", ok=True, text=f"{site.name} answers; {len(seen)} machines")


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
