"""The keeper's side of the way out: sockets and rules in the stack's namespace.

Opened, it hands the sockets to whoever starts the `uplink` program on the computer's own network,
and notices when that ends.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox import nftables
from essaim.drivers.sandbox.files import write_text
from essaim.drivers.sandbox.hands import KeeperError
from essaim.drivers.sandbox.loop import READ, Loop, Ready, Task

if TYPE_CHECKING:
    from collections.abc import Generator

    from essaim.drivers.sandbox.files import Layout

_DNS = 53
_END_SECONDS = 5.0
_CLOSED = "# names come from /etc/hosts\n"
_UNKNOWN = {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.ENOENT}


class WayOut:
    """The internet access of one stack; closed at first."""

    def __init__(self, layout: Layout, loop: Loop, network: dict[str, Any], bridge: str) -> None:
        self._layout = layout
        self._loop = loop
        self._network = network
        self._bridge = bridge
        self._uplink: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """Whether somebody passes on what machines send."""
        return self._uplink is not None

    def open(self) -> Generator[Any, Any, socket.socket]:
        """Open it, anew if need be; gives the socket that the uplink is to be started with."""
        yield from self.close()
        gateway, prefix = self._network["gateway"], self._network["prefix"]
        sockets = [
            _listen(gateway, 0, socket.SOCK_STREAM),
            _listen(gateway, _DNS, socket.SOCK_STREAM),
            _listen(gateway, _DNS, socket.SOCK_DGRAM),
        ]
        try:
            nftables.redirect(self._bridge, gateway, prefix, sockets[0].getsockname()[1])
        except OSError as error:
            kind = "setup" if error.errno in _UNKNOWN else "transient"
            hint = "the kernel needs nf_tables with NAT: sudo modprobe nft_redir"
            raise KeeperError(kind, f"no internet access: {error}", hint) from error
        else:
            own, theirs = socket.socketpair()
            socket.send_fds(own, [b"out"], [each.fileno() for each in sockets])
            self._uplink = own
            self._loop.spawn(self._watch(own))
            self.write_resolvers()
            return theirs
        finally:
            for each in sockets:
                each.close()

    def close(self) -> Task:
        """Close it and wait until the uplink has ended.  Nothing if it is closed."""
        uplink, self._uplink = self._uplink, None
        if uplink:
            nftables.stop_redirecting()
            self.write_resolvers()
            with suppress(OSError):
                uplink.shutdown(socket.SHUT_WR)
            # A descriptor of its own: somebody watches the other.
            with uplink.dup() as ended:
                yield Ready(ended.fileno(), READ, _END_SECONDS)

    def _watch(self, uplink: socket.socket) -> Task:
        """Take note that the uplink has ended: then machines are told so at once."""
        with uplink:
            yield Ready(uplink.fileno(), READ)
        if self._uplink is uplink:
            self._uplink = None
            nftables.stop_redirecting()
            self.write_resolvers()

    def write_resolvers(self) -> None:
        """Tell machines where names are looked up: here, or nowhere, which fails at once."""
        text = _CLOSED
        if self.is_open:
            text = f"nameserver {self._network['gateway']}\n{_search_lines()}"
        with suppress(OSError):  # on a full disk all else goes on
            write_text(self._layout.hosts / "resolv.conf", text, mode=0o644)


def _listen(address: str, port: int, kind: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        if kind == socket.SOCK_STREAM:
            made.listen(1024)
    except BaseException:
        made.close()
        raise
    return made


def _search_lines() -> str:
    """Copy what the computer's own resolv.conf says besides servers."""
    with suppress(OSError):
        lines = Path("/etc/resolv.conf").read_text(errors="replace").splitlines()
        return "".join(f"{line}\n" for line in lines if line.startswith(("search ", "options ")))
    return ""
