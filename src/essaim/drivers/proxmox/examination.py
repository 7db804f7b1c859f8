"""What is known of a cluster while the doctor looks at it, and what could not be asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from essaim.drivers.doctor import Check
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.cluster import Guest, Listing
from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import EssaimError


@dataclass(slots=True)
class Examination:
    """One look at a cluster that answers."""

    api: Api
    listing: Listing
    version: int  #: of Proxmox VE: 7, 8, 9
    templates: list[Guest] = field(default_factory=list)  #: that images name
    unseen: set[int] = field(default_factory=set)  #: ids of templates that may not be looked at
    storages: dict[str, set[str]] = field(default_factory=dict)  #: what each must be able to hold
    cards: set[tuple[str, str]] = field(default_factory=set)  #: bridges and VLANs that are used
    agent: bool = False  #: whether host keys are read through the agents of virtual machines
    lacking: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  #: by path

    @property
    def settings(self) -> Settings:
        """Those of the site."""
        return self.api.settings

    @property
    def online(self) -> list[str]:
        """The nodes that may hold our machines, and answer."""
        wanted = self.settings.nodes or tuple(sorted(self.listing.nodes))
        return [name for name in wanted if self.listing.online(name)]

    def uses(self, storage: str, *holds: str) -> None:
        """Machines need that storage, for such content."""
        self.storages.setdefault(storage, set()).update(holds)

    def lacks(self, path: str) -> str:
        """What the account lacks on a path, for a sentence; nothing when it has all it needs."""
        return ", ".join(sorted(self.lacking.get(path, ())))


def not_asked(name: str, what: str, why: str) -> Check:
    """Say that something was not looked at: never ok without having asked."""
    return Check(name, ok=True, warn=True, text=f"{what} was not looked at: {why}")


def refused(name: str, what: str, error: ApiError) -> Check:
    """Say that the cluster did not let us look."""
    return not_asked(name, what, error.text)


def words(error: EssaimError) -> str:
    """An error and what to do about it, one below the other."""
    return f"{error.what}\n{error.hint}" if error.hint else error.what


def listed(names: Iterable[str]) -> str:
    """Names for a sentence."""
    return ", ".join(sorted(names)) or "none"
