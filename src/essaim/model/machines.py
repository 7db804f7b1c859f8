"""What drivers are told and what they report."""

from __future__ import annotations

import enum
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network


class Power(enum.StrEnum):
    """Whether a machine runs.  ABSENT machines are simply not reported."""

    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One machine as a driver sees it."""

    name: MachineName
    power: Power
    address: str
    image: str  #: digest of the image it was made from
    boot: str = ""  #: differs after every start, so that lost daemons are noticed
    detail: Mapping[str, str] = field(default_factory=dict)  #: for people: pid, path, …
    shared: tuple[str, ...] = ()  #: folders it has in common with others of its stack
    adopted: bool = False  #: somebody else made it: removing it means giving it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """What a machine is given at first boot: its identity and who may enter."""

    hostname: str
    host_key: str = field(repr=False)  #: private, OpenSSH format; its public half is pinned
    authorized_keys: tuple[str, ...]
    #: Keys of cloud-config by which the machine configures itself; holds secrets.
    user_data: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Form(enum.StrEnum):
    """What a driver makes machines from."""

    ROOTFS = "rootfs"  #: a folder that holds a root file system
    DISK = "disk"  #: a bootable qcow2 file
    TEMPLATE = "template"  #: something the site has already: nothing is built


class Driver(Protocol):
    """Five idempotent verbs.  They return soon, raise only our errors, and are safe to repeat."""

    @property
    def form(self) -> Form:
        """The form images must have here."""

    def observe(self, stack: str) -> Sequence[Observed]:
        """List the machines of a stack that exist.  Never changes anything."""

    def create(self, machine: Machine, network: Network, image: Image, seed: Seed) -> None:
        """Make the machine's disk and definition, powered off.  Nothing if it is there."""

    def destroy(self, name: MachineName) -> None:
        """Remove the machine and its disk, whatever its power.  Nothing if it is gone."""

    def start(self, name: MachineName) -> None:
        """Power it on.  Nothing if it runs."""

    def stop(self, name: MachineName) -> None:
        """Power it off and keep its disk.  Nothing if it is off."""


@runtime_checkable
class Networks(Protocol):
    """A driver that makes a network of its own for each stack."""

    def open_network(self, stack: str, network: Network) -> None:
        """Make the stack's network, and open or close its way out.  Nothing if it is so."""

    def close_network(self, stack: str) -> None:
        """Remove the stack's network and all that is left of the stack.  Nothing if gone."""

    def network(self, stack: str) -> Network | None:
        """The network as it is now; None when there is none."""


@runtime_checkable
class Cards(Protocol):
    """A driver that says which network card a machine has, or will have, before it starts."""

    def card(self, name: MachineName) -> str:
        """The card's address, lower case with colons: the same until the machine is destroyed."""


@runtime_checkable
class Stocked(Protocol):
    """A driver whose images are things the site has: templates, archives."""

    def check_image(self, image: Image) -> None:
        """RejectedError, with a near spelling, when machines cannot be made from it there."""


@runtime_checkable
class ChecksMachines(Protocol):
    """A driver that can tell beforehand whether a site has all that machines need."""

    def check_machines(self, image: Image, machines: Sequence[Machine]) -> None:
        """RejectedError, with a near spelling, when one of them cannot be made from the image."""


@runtime_checkable
class Slow(Protocol):
    """A driver whose machines take longer to boot than a sandbox does."""

    def answers_within(self) -> float:
        """Seconds from power-on after which a machine that has not answered counts as silent."""


class HostKeySource(enum.StrEnum):
    """How we come to know the host key of a machine."""

    GIVEN = "given"  #: the driver puts the key of its seed into the machine before it starts
    READ = "read"  #: the machine makes its own; the driver reads it inside the machine
    SHOWN = "shown"  #: the machine makes its own; only its SSH server shows it, and nobody vouches


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKeyAccess:
    """Where the host keys of machines come from, and why no safer way is open."""

    source: HostKeySource
    reason: str = ""  #: with SHOWN: what is missing
    hint: str = ""  #: with SHOWN: what to do about it


@runtime_checkable
class HostKeys(Protocol):
    """A driver that cannot always give machines the host key of their seed."""

    def host_key_access(self, image: Image) -> HostKeyAccess:
        """How the host keys of machines made from that image become known; changes nothing."""

    def read_host_key(self, name: MachineName) -> str:
        """Return `ssh-ed25519 AAAA…` as the machine itself has it.

        TransientError while the machine is not ready for it, RejectedError when it never will be.
        """

    def found_host_key(self, id: str) -> str:  # noqa: A002 - Found's
        """Likewise for a machine of the inventory that is not ours yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a machine's disk at some moment."""

    label: str
    made_at: float  #: seconds since 1970
    power: Power  #: of the machine when it was made


@runtime_checkable
class Snapshots(Protocol):
    """A driver that can keep a machine's disk as it is and go back to it."""

    def snapshots(self, name: MachineName) -> Sequence[Snapshot]:
        """List them, oldest first."""

    def snapshot(self, name: MachineName, label: str) -> None:
        """Keep the disk as it is now.  RejectedError when there is one of that label."""

    def restore(self, name: MachineName, label: str) -> None:
        """Go back; the machine is off afterwards, and what came after the snapshot is lost."""

    def drop_snapshot(self, name: MachineName, label: str) -> None:
        """Forget a snapshot.  Nothing if it is gone."""


@runtime_checkable
class Consoles(Protocol):
    """A driver whose machines have a serial console."""

    def console(self, name: MachineName) -> socket.socket:
        """Return a connected stream socket to the machine's serial console."""

    def console_log(self, name: MachineName) -> str:
        """What the machine has printed on its console since it was last started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A machine of a site, whoever made it."""

    id: str  #: what the site itself calls it for ever
    name: str  #: what people call it there
    power: Power
    owner: str  #: the machine it is for us, as STACK/MACHINE; empty when it is not ours
    detail: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Inventory(Protocol):
    """A driver that sees machines it did not make.  They are only looked at until adopted."""

    def inventory(self) -> Sequence[Found]:
        """List every machine of the site that this account may see."""

    def adopt(self, id: str, machine: Machine, network: Network) -> None:  # noqa: A002 - Found's
        """Take a stranger's machine under our care, leaving its disk and power as they are."""


@runtime_checkable
class Templates(Protocol):
    """A driver whose site has templates, which are no machines but look alike."""

    def templates(self) -> Sequence[Found]:
        """List them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """How a command ended that a driver ran inside a machine."""

    exit_code: int
    output: str  #: stdout and stderr


@runtime_checkable
class GuestCommands(Protocol):
    """A driver that runs commands inside its machines, whatever network they are on."""

    def execute(self, name: MachineName, command: Sequence[str]) -> Executed | None:
        """Run a command as root to its end; None when the site's settings give no way to do it.

        The machine must be on.  TransientError when it is not ready for it yet.
        """


@runtime_checkable
class Reachable(Protocol):
    """A driver whose machines live elsewhere."""

    def check_reachable(self) -> None:
        """SiteAwayError, within some seconds, when the site does not answer or refuses us."""


@runtime_checkable
class Forgets(Protocol):
    """A driver that can give a machine up without asking the site, which may be lost for ever."""

    def left_behind(self, name: MachineName) -> Mapping[str, str]:
        """What may be left of a machine at the site, for a person to delete by hand."""

    def forget(self, name: MachineName) -> None:
        """Release all that is reserved for a machine.  Nothing is changed at the site."""


@runtime_checkable
class Closes(Protocol):
    """A driver that holds something open as long as it is used."""

    def close(self) -> None:
        """Let go of it; machines are left as they are."""


class Reservations(Protocol):
    """Numbers of a site, such as ports, of which each has one holder at most."""

    def reserve(
        self, site: str, kind: str, holder: str, candidates: Iterable[int], *, anew: bool = False
    ) -> int:
        """Give the holder's number, or the first candidate nobody holds.

        With `anew`, the number it had is given up for another one.
        """

    def release(self, site: str, holder: str) -> None:
        """Give up all the holder has there, of every kind.  Nothing if it has none."""


@runtime_checkable
class Dials(Protocol):
    """A driver whose machines sit on a network this process is not on."""

    def dial(self, name: MachineName, port: int) -> socket.socket:
        """Return a connected, blocking stream socket to that port of the machine."""

    def proxy_command(self, name: MachineName) -> list[str]:
        """An OpenSSH ProxyCommand (used with ProxyUseFdpass) that reaches the machine's port 22."""


@runtime_checkable
class Listens(Protocol):
    """A driver whose machines cannot reach this process unless it meets them on their network."""

    def listen(self, stack: str, port: int) -> socket.socket:
        """Return a socket listening on the stack's first address."""
