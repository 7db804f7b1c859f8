"""What cannot be a machine, a stack or a network here, said before anything is made."""

from __future__ import annotations

import ipaddress

from essaim.model.errors import RejectedError
from essaim.model.names import NAME, MachineName
from essaim.model.stacks import Machine, Network

_LONGEST_PREFIX = 30


def check_stack(stack: str) -> None:
    """RejectedError when that cannot name a stack."""
    if not NAME.fullmatch(stack):
        raise RejectedError(f"{stack!r} cannot name a stack", hint="lower case, digits, dashes")


def check_name(name: MachineName) -> None:
    """RejectedError when that cannot name a machine of a stack."""
    check_stack(name.stack)
    if not NAME.fullmatch(name.machine):
        raise RejectedError(f"{name.machine!r} cannot name a machine")


def block_of(network: Network) -> ipaddress.IPv4Network:
    """The addresses of a network; RejectedError when it has none for machines."""
    try:
        block = ipaddress.IPv4Network(network.cidr)
    except ValueError as error:
        raise RejectedError(f"{network.cidr} is not an IPv4 network: {error}") from error
    if block.prefixlen > _LONGEST_PREFIX:
        raise RejectedError(f"{network.cidr} has no room for a machine", hint="use a /24")
    return block


def address_of(machine: Machine, network: Network) -> ipaddress.IPv4Address:
    """A machine's address; RejectedError when its network cannot have it."""
    block = block_of(network)
    try:
        address = ipaddress.IPv4Address(machine.address)
    except ValueError as error:
        raise RejectedError(f"{machine.name}: {machine.address} is not an address") from error
    if address not in block or address in (block[0], block[1], block[-1]):
        raise RejectedError(
            f"{machine.name}: {address} cannot be an address of a machine in {block}",
            hint=f"the first host address, {block[1]}, belongs to the site",
        )
    return address
