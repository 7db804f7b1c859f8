"""Redirect what machines send to the world to a port of the stack's own namespace.

Spoken to the kernel directly (nf_tables over netlink), so that no program has to be installed.  The
rules belong to the namespace and go with it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

_NETFILTER = 12
_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_ERROR = 2
_BATCH_BEGIN, _BATCH_END, _SUBSYSTEM = 0x10, 0x11, 10
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE = 0, 2, 3, 6
_NESTED = 0x8000
_TABLE, _CHAIN = b"essaim\0", b"out\0"
_PREROUTING, _DESTINATION_NAT = 0, -100
_IIFNAME, _L4PROTO = 6, 16  #: keys of `meta`
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_EQUAL, _DIFFERENT = 0, 1
_TCP, _UDP, _DNS = 6, 17, 53
_REGISTER = struct.pack(">I", 1)


def redirect(bridge: str, address: str, prefix: int, port: int) -> None:
    """Send TCP that comes from `bridge` for any other network to `port`, and DNS to port 53."""
    mask = struct.pack(">I", (0xFFFFFFFF << (32 - prefix)) & 0xFFFFFFFF)
    pairs = zip(socket.inet_aton(address), mask, strict=True)
    own = bytes(part & bits for part, bits in pairs)
    here = _meta(_IIFNAME) + _compare(_EQUAL, bridge.encode().ljust(16, b"\0"))
    elsewhere = (
        _payload(_NETWORK_HEADER, 16, 4)
        + _expression(b"bitwise", (1, _REGISTER), (2, _REGISTER), (3, struct.pack(">I", 4)),
                      (4 | _NESTED, _attribute(1, mask)), (5 | _NESTED, _attribute(1, bytes(4))))
        + _compare(_DIFFERENT, own)
    )  # fmt: skip
    tcp = _meta(_L4PROTO) + _compare(_EQUAL, bytes([_TCP])) + _to(port)
    dns = _meta(_L4PROTO) + _compare(_EQUAL, bytes([_UDP]))
    dns += _payload(_TRANSPORT_HEADER, 2, 2) + _compare(_EQUAL, struct.pack(">H", _DNS)) + _to(_DNS)
    hook = _attribute(1, struct.pack(">i", _PREROUTING))
    hook += _attribute(2, struct.pack(">i", _DESTINATION_NAT))
    chain = _attribute(1, _TABLE) + _attribute(3, _CHAIN) + _attribute(4 | _NESTED, hook)
    _change(
        (_NEWTABLE, _attribute(1, _TABLE)),
        (_NEWCHAIN, chain + _attribute(7, b"nat\0")),
        (_NEWRULE, _rule(here + elsewhere + tcp)),
        (_NEWRULE, _rule(here + elsewhere + dns)),
    )


def stop_redirecting() -> None:
    """Remove the rules.  Nothing if there are none."""
    try:
        _change((_DELTABLE, _attribute(1, _TABLE)))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def _expression(name: bytes, *attributes: tuple[int, bytes]) -> bytes:
    body = b"".join(_attribute(kind, value) for kind, value in attributes)
    parts = _attribute(1, name + b"\0") + _attribute(2 | _NESTED, body)
    return _attribute(1 | _NESTED, parts)


def _meta(key: int) -> bytes:
    return _expression(b"meta", (1, _REGISTER), (2, struct.pack(">I", key)))


def _payload(base: int, offset: int, length: int) -> bytes:
    where = zip((2, 3, 4), (base, offset, length), strict=True)
    return _expression(
        b"payload", (1, _REGISTER), *((kind, struct.pack(">I", value)) for kind, value in where)
    )


def _compare(how: int, value: bytes) -> bytes:
    data = _attribute(1, value)
    return _expression(b"cmp", (1, _REGISTER), (2, struct.pack(">I", how)), (3 | _NESTED, data))


def _to(port: int) -> bytes:
    data = _attribute(1, struct.pack(">H", port))
    immediate = _expression(b"immediate", (1, _REGISTER), (2 | _NESTED, data))
    return immediate + _expression(b"redir", (1, _REGISTER))


def _rule(expressions: bytes) -> bytes:
    names = _attribute(1, _TABLE) + _attribute(2, _CHAIN)
    return names + _attribute(4 | _NESTED, expressions)


def _message(kind: int, flags: int, sequence: int, head: bytes, body: bytes = b"") -> bytes:
    return struct.pack("=IHHII", 20 + len(body), kind, flags, sequence, 0) + head + body


def _change(*steps: tuple[int, bytes]) -> None:
    """Do all or nothing; OSError when the kernel refuses."""
    frame = struct.pack(">BBH", socket.AF_UNSPEC, 0, _SUBSYSTEM)
    head = struct.pack(">BBH", socket.AF_INET, 0, 0)
    messages = [_message(_BATCH_BEGIN, _REQUEST, 0, frame)]
    for number, (kind, body) in enumerate(steps, start=1):
        flags = _REQUEST | _ACK | (0 if kind == _DELTABLE else _CREATE | _APPEND)
        messages.append(_message(_SUBSYSTEM << 8 | kind, flags, number, head, body))
    messages.append(_message(_BATCH_END, _REQUEST, len(messages), frame))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as conn:
        conn.settimeout(5)
        conn.bind((0, 0))
        conn.send(b"".join(messages))
        answered = 0
        while answered < len(steps):
            answered += _answers(conn.recv(65536))


def _answers(data: bytes) -> int:
    """Count the acknowledgements; OSError at the first refusal."""
    count = 0
    while data:
        size, kind = struct.unpack_from("=IH", data)
        if kind == _ERROR:
            count += 1
            if code := -struct.unpack_from("=i", data, 16)[0]:
                raise OSError(code, f"nf_tables: {os.strerror(code)}")
        data = data[size + (-size % 4) :]
    return count
