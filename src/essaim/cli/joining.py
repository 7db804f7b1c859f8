"""The line that makes a machine join a fleet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

from essaim.cli.client import is_loopback


def join_line(server: str, token: str, more: Sequence[str] = ()) -> str:
    """What to paste on a machine, as root.

    Python fetches the agent, as it is there anyway.  The token is in the environment: arguments
    of a process can be read by everybody on the machine.
    """
    fetch = f"import urllib.request as u; u.urlretrieve({server + '/agent.py'!r}, 'agent.py')"
    words = ["python3", "agent.py", "join", "--server", server, *more]
    return (
        f"python3 -c {shlex.quote(fetch)} && ESSAIM_TOKEN={shlex.quote(token)} {shlex.join(words)}"
    )


def in_the_clear(server: str) -> bool:
    """Agents are told to allow it: others could listen."""
    url = urlsplit(server)
    return url.scheme == "http" and not is_loopback(url.hostname or "")
