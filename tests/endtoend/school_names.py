"""The name server of the school whose project file the example is."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

from databases import find
from servers.nameservers import bind

FORWARD, BACK = "cri.local.isima.fr", "79.168.192.in-addr.arpa"


@contextlib.contextmanager
def schools_names() -> Iterator[dict[str, Any]]:
    """A real BIND with its zones, and one name that is somebody else's; as a site file says it."""
    with bind({FORWARD: "taken IN A 192.168.79.9\n", BACK: ""}) as its:
        yield {
            "kind": "rfc2136",
            "server": its.server,
            "port": its.port,
            "zones": list(its.zones),
            "key": its.key,
            "secret": {"env": "SCHOOL_DNS_KEY"},
        }


def dig(port: int, *words: str) -> str:
    """What `dig` is told by the server at that port."""
    program = find("dig", "bind9-dnsutils")
    asked = [program, "@127.0.0.1", "-p", str(port), "+short", "+tries=5", *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
