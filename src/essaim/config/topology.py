"""Groups of machines become machines: names, addresses, sizes, order."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from essaim.config.addresses import SITE, address, last_host, offsets, prefix_for
from essaim.config.order import circle
from essaim.model.names import NAME, MachineName
from essaim.model.spelling import meant
from essaim.model.stacks import Machine, Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from essaim.config.problems import Problems
    from essaim.config.schema import GroupSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What machines are made of, once names, sizes and the network have been checked."""

    stack: str
    image: str
    groups: Mapping[str, GroupSchema]
    sizes: Mapping[str, Size]
    network: IPv4Network
    every: Sequence[str] = ()  #: roles that every machine has, before its own
    shared: tuple[str, ...] = ()  #: folders they have in common


def network_of(cidr: str, problems: Problems) -> IPv4Network | None:
    """Read the stack's network."""
    at = ("network", "cidr")
    try:
        return IPv4Network(cidr)
    except ValueError:
        pass
    try:
        hint = f"did you mean {IPv4Network(cidr, strict=False)}?"
    except ValueError:
        hint = "for instance 10.77.0.0/24"
    problems.add(at, f"network.cidr must be an IPv4 network, not {cidr!r}", hint)
    return None


def check_groups(groups: Mapping[str, GroupSchema], problems: Problems) -> None:
    """Check the names and the order of groups."""
    if not groups:
        problems.add(("topology",), "topology names no machines", "topology: {nodes: {count: 4}}")
    for name, group in groups.items():
        longest = name if group.count is None else f"{name}-{max(group.count, 1)}"
        if not NAME.fullmatch(longest):
            hint = "at most 40 small letters, digits and dashes, a letter first"
            problems.add(("topology", name), f"no machine can be called {longest}", hint)
        for index, other in enumerate(group.after):
            if other not in groups:
                at = ("topology", name, "after", str(index))
                problems.add(at, f"there is no group {other}", meant(other, groups, kind="groups"))
    _check_names(groups, problems)
    if path := circle({n: [o for o in g.after if o in groups] for n, g in groups.items()}):
        what = f"groups come after each other in a circle: {' → '.join(path)}"
        problems.add(("topology", path[0], "after"), what)


def _check_names(groups: Mapping[str, GroupSchema], problems: Problems) -> None:
    """Find a group called like a machine of another: `nodes-1` and `nodes`."""
    for name, group in groups.items():
        base, dash, index = name.rpartition("-")
        other = groups.get(base)
        if group.count is not None or not dash or other is None or not index.isdigit():
            continue
        if str(int(index)) == index and 1 <= int(index) <= (other.count or 0):
            what = f"two machines are called {name}: the group {name} and one of {base}"
            problems.add(("topology", name), what)


def places(layout: Layout, problems: Problems) -> dict[str, range]:
    """Give every machine its offset in the network; a group's own `address` wins."""
    counts = {name: group.count for name, group in layout.groups.items()}
    result = offsets(counts)
    for name, group in layout.groups.items():
        if group.address is not None:
            result[name] = _own(layout.network, name, group, problems)
    computed = {n: r for n, r in result.items() if layout.groups[n].address is None}
    limit = last_host(layout.network)
    highest = max((r[-1] for r in computed.values() if r), default=0)
    if highest > limit:
        total = sum(len(r) for r in computed.values())
        fit = sum(1 for r in computed.values() for offset in r if offset <= limit)
        what = f"{layout.network} has room for {fit} of these {total} machines"
        base = layout.network.network_address
        larger = IPv4Network((base, prefix_for(highest)), strict=False)
        problems.add(("network", "cidr"), what, f"use {larger} or larger")
    return result


def _own(network: IPv4Network, name: str, group: GroupSchema, problems: Problems) -> range:
    at = ("topology", name, "address")
    count = 1 if group.count is None else group.count
    try:
        first = int(IPv4Address(group.address)) - int(network.network_address)
    except ValueError:
        problems.add(at, f"topology.{name}.address must be an address, not {group.address!r}")
        return range(0)
    wanted = range(first, first + count)
    if first == SITE:
        problems.add(at, f"{group.address} belongs to the site, as the network's first address")
    elif first < SITE or first + max(count, 1) - 1 > last_host(network):
        last = IPv4Address(int(network.network_address) + first + max(count, 1) - 1)
        span = group.address if count <= 1 else f"{group.address} … {last}"
        problems.add(at, f"{span} is outside the network {network}")
        return range(0)
    return wanted


def machines(layout: Layout, where: Mapping[str, range], problems: Problems) -> Iterator[Machine]:
    """Make every machine, in the order of the topology; two on one address are a problem."""
    taken: dict[int, str] = {}
    for name, group in layout.groups.items():
        image, size = group.image or layout.image, layout.sizes[name]
        roles, after = tuple(dict.fromkeys((*layout.every, *group.roles))), tuple(group.after)
        for index, offset in enumerate(where[name], start=1):
            machine = name if group.count is None else f"{name}-{index}"
            if (other := taken.setdefault(offset, machine)) is not machine:
                which = name if group.address is not None else other.rpartition("-")[0] or other
                at = ("topology", which if which in layout.groups else other, "address")
                spot = address(layout.network, offset)
                problems.add(at, f"{other} and {machine} would both have the address {spot}")
                return
            yield Machine(
                name=MachineName(layout.stack, machine),
                group=name,
                index=index,
                address=address(layout.network, offset),
                image=image,
                size=size,
                roles=roles,
                shared=layout.shared,
                labels=group.labels,
                after=after,
            )
