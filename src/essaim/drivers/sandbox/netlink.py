"""Network devices, addresses and routes of one network namespace, without a helper program.

See rtnetlink(7).  A socket stays in the namespace it was opened in, so a process that has moved on
can still act on the one it came from.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

_NLM_REQUEST = 0x1 | 0x4  # request, with acknowledgement
_NLM_CREATE = 0x600  # create, and fail when it is there
_NLMSG_ERROR = 2
_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE = 16, 17, 20, 24
_IFF_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 10, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_GATEWAY = 5
_RT_MAIN, _RTPROT_STATIC, _RT_UNIVERSE, _RTN_UNICAST = 254, 4, 0, 1


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def _link(index: int = 0, *, up: bool = False) -> bytes:
    flag = _IFF_UP if up else 0
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flag, flag)


def _name(name: str) -> bytes:
    return _attribute(_IFLA_IFNAME, name.encode() + b"\0")


def hardware_address(address: str) -> bytes:
    """Derive a locally administered MAC address from an IPv4 address."""
    return b"\x02\x00" + socket.inet_aton(address)


def cable_name(address: str) -> str:
    """Name a machine's cable on the bridge's side."""
    return f"m{socket.inet_aton(address).hex()}"


class Netlink:
    """A connection to the network namespace the caller was in when making it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._socket.bind((0, 0))

    def close(self) -> None:
        """Let go of the namespace."""
        self._socket.close()

    def _ask(self, kind: int, body: bytes, flags: int = 0) -> None:
        size = 16 + len(body)
        head = struct.pack("=IHHII", size, kind, _NLM_REQUEST | flags, 1, 0)
        self._socket.send(head + body)
        answer = self._socket.recv(65536)
        (got,) = struct.unpack_from("=H", answer, 4)
        code = -struct.unpack_from("=i", answer, 16)[0] if got == _NLMSG_ERROR else errno.EPROTO
        if code:
            raise OSError(code, f"netlink {kind}: {os.strerror(code)}")

    def bridge(self, name: str, mac: bytes) -> None:
        """Make a bridge and bring it up.

        Without an address of its own it takes that of a port, and another one when ports change:
        machines that remember the last one would be talking to nobody.
        """
        info = _attribute(_INFO_KIND, b"bridge")
        body = (
            _link(up=True)
            + _name(name)
            + _attribute(_IFLA_ADDRESS, mac)
            + _attribute(_IFLA_LINKINFO, info)
        )
        self._ask(_NEWLINK, body, _NLM_CREATE)

    def cable(self, outer: str, bridge: int, inner: str, namespace: int, mac: bytes) -> None:
        """Plug a cable into the bridge (by index); its other end `inner` is in `namespace`."""
        peer = (
            _link()
            + _name(inner)
            + _attribute(_IFLA_ADDRESS, mac)
            + _attribute(_IFLA_NET_NS_FD, struct.pack("=I", namespace))
        )
        info = _attribute(_INFO_KIND, b"veth") + _attribute(
            _INFO_DATA, _attribute(_VETH_PEER, peer)
        )
        body = (
            _link(up=True)
            + _name(outer)
            + _attribute(_IFLA_MASTER, struct.pack("=I", bridge))
            + _attribute(_IFLA_LINKINFO, info)
        )
        try:
            self._ask(_NEWLINK, body, _NLM_CREATE)
        except FileExistsError:
            # The kernel takes down a dead machine's network in its own time.
            self.unplug(outer)
            self._ask(_NEWLINK, body, _NLM_CREATE)

    def unplug(self, outer: str) -> None:
        """Remove a cable.  Nothing if it is gone."""
        try:
            self._ask(_DELLINK, _link() + _name(outer))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def up(self, name: str) -> None:
        """Bring a device up."""
        self._ask(_NEWLINK, _link(socket.if_nametoindex(name), up=True))

    def address(self, name: str, address: str, prefix: int) -> None:
        """Give a device an address."""
        raw = socket.inet_aton(address)
        index = socket.if_nametoindex(name)
        head = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, _RT_UNIVERSE, index)
        body = head + _attribute(_IFA_LOCAL, raw) + _attribute(_IFA_ADDRESS, raw)
        self._ask(_NEWADDR, body, _NLM_CREATE)

    def default_route(self, gateway: str) -> None:
        """Send everything else to `gateway`."""
        head = struct.pack(
            "=BBBBBBBBI",
            socket.AF_INET, 0, 0, 0, _RT_MAIN, _RTPROT_STATIC, _RT_UNIVERSE, _RTN_UNICAST, 0,
        )  # fmt: skip
        body = head + _attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
        self._ask(_NEWROUTE, body, _NLM_CREATE)
