"""What makes a stack a project, read back from the stack alone.  Loads no library."""

from __future__ import annotations

from ipaddress import IPv4Interface
from typing import TYPE_CHECKING

from essaim.config.plays import Play, play_from_json
from essaim.model.stacks import Network

if TYPE_CHECKING:
    from essaim.model.stacks import Machine, Stack

#: The key of a stack's variables that makes it a project.
PROJECT = "project"
#: Labels of a machine; those of the first line drivers and servers look at.
HOST, NODE, STORAGE, BRIDGE, VLAN, GATEWAY = "host", "node", "storage", "bridge", "vlan", "gateway"
DESCRIPTION, IP, KEYS = "description", "ip", "keys"


def is_project(stack: Stack) -> bool:
    """Whether a stack was described by a project's file."""
    return PROJECT in stack.vars


def play_of(stack: Stack) -> Play | None:
    """The play of a project; None when it has none, or is no project."""
    data = stack.vars.get(PROJECT, {}).get("play")
    return play_from_json(data) if data else None


def network_of(machine: Machine, stack: Stack) -> Network:
    """The network a machine is on: its own where the site has several."""
    own = machine.labels.get(IP)
    return Network(cidr=str(IPv4Interface(own).network)) if own else stack.network


def keys_of(machine: Machine) -> tuple[str, ...]:
    """The public keys of those who may enter, besides us."""
    return tuple(machine.labels.get(KEYS, "").splitlines())
