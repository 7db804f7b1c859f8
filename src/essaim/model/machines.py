"""What drivers are told and what they report."""

from __future__ import annotations

import enum
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """What a machine is given at first boot: its identity and who may enter."""

    hostname: str
    host_key: str = field(repr=False)  #: private, OpenSSH format; its public half is pinned
    authorized_keys: tuple[str, ...]


class Driver(Protocol):
    """Five idempotent verbs.  They return soon, raise only our errors, and are safe to repeat."""

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
        """Make the stack's network.  Nothing if it is there."""

    def close_network(self, stack: str) -> None:
        """Remove the stack's network and all that is left of the stack.  Nothing if gone."""

    def network(self, stack: str) -> Network | None:
        """The network as it is now; None when there is none."""


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
