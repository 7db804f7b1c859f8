"""Examine the computer Essaim runs on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from essaim.model.errors import EssaimError
from essaim.model.stacks import Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.usecases.services import Services

#: Below this an image build would fail half way.
FREE_DISK = 3 * 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    text: str


@runtime_checkable
class Examines(Protocol):
    """A driver that can say what it finds on this computer."""

    def doctor(self) -> Sequence[tuple[str, bool, str]]:
        """(what, whether it is fine, in words with what to do)."""


def examine(services: Services) -> list[Check]:
    """Look at everything a first `up` will need."""
    return list(_checks(services))


def _checks(services: Services) -> Iterator[Check]:
    yield Check("python", ok=True, text=sys.version.split()[0])
    for tool, package in (("mmdebstrap", "mmdebstrap"), ("ssh", "openssh-client")):
        path = shutil.which(tool)
        yield Check(tool, ok=bool(path), text=path or f"sudo apt-get install {package}")
    yield _database(services)
    yield _disk(services)
    driver = services.driver(Site(name="local", driver="sandbox"))
    if isinstance(driver, Examines):
        for name, ok, text in driver.doctor():
            yield Check(name, ok=ok, text=text)


def _database(services: Services) -> Check:
    try:
        stacks = services.stacks.list_stacks()
    except EssaimError as error:
        return Check("database", ok=False, text=f"{error.what} {error.hint}")
    return Check("database", ok=True, text=f"answers; {len(stacks)} stacks")


def _disk(services: Services) -> Check:
    place = services.home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free at {place}"
    return Check("disk", ok=free >= FREE_DISK, text=text)
