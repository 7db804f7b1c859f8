"""The command that makes a machine join a fleet."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

from essaim.cli.client import is_loopback

#: Python fetches the agent, as it is there anyway; an error is a sentence, not a traceback.
FETCH = """\
import sys, urllib.request as u
why = lambda e: getattr(e, "reason", e)
sys.excepthook = lambda t, e, b: print("cannot fetch agent.py:", why(e))
u.urlretrieve({address}, "agent.py")"""


def join_line(server: str, token: str, more: Sequence[str] = ()) -> str:
    """Give the command to paste on a machine, as root: lines that fit a terminal.

    The token is in the environment: everybody on the machine can read arguments of a process.
    """
    fetch = FETCH.format(address=json.dumps(f"{server}/agent.py"))
    words = ["python3", "agent.py", "join", "--server", server, *more]
    return (
        f"python3 -c {shlex.quote(fetch)} &&\n"
        f"  ESSAIM_TOKEN={shlex.quote(token)} \\\n"
        f"  {shlex.join(words)}"
    )


def in_the_clear(server: str) -> bool:
    """Agents are told to allow it: others could listen."""
    url = urlsplit(server)
    return url.scheme == "http" and not is_loopback(url.hostname or "")
