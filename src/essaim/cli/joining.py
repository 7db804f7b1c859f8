"""The command that makes a machine join a fleet."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from essaim.cli.client import is_loopback
from essaim.model.errors import RejectedError, UnknownError

if TYPE_CHECKING:
    from essaim.cli.client import Client

#: Python fetches the agent, as it is there anyway; an error is a sentence, not a traceback.  No
#: certificate is needed here: the digest says whether the program is the right one.
FETCH = """\
import hashlib, ssl, sys, urllib.request as u
why = lambda e: getattr(e, "reason", e)
sys.excepthook = lambda t, e, b: print("cannot fetch agent.py:", why(e))
c = ssl._create_unverified_context()
b = u.urlopen({address},
  timeout=60, context=c).read(1 << 24)
if hashlib.sha256(b).hexdigest() != (
  "{digest}"):
  sys.exit("agent.py was changed on the way, or the server upgraded since: "
    "nothing was run; essaim nodes enrol prints a new line")
open("agent.py", "wb").write(b)"""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
OK = 200


def join_line(server: str, token: str, agent: str, more: Sequence[str] = ()) -> str:
    """Give the command to paste on a machine, as root: lines that fit a terminal.

    `agent` is the program's SHA-256.  The token is in the environment: everybody on the machine can
    read arguments of a process.  The folder is root's own: nobody changes the program in between.
    """
    fetch = FETCH.format(address=json.dumps(f"{server}/agent.py"), digest=agent)
    words = ["python3", "-I", "agent.py", "join", "--server", server]
    rest = "".join(f" \\\n  {shlex.join(each)}" for each in _options(more))
    return (
        f'cd "$(mktemp -d)" &&\n'
        f"python3 -I -c {shlex.quote(fetch)} &&\n"
        f"  ESSAIM_TOKEN={shlex.quote(token)} \\\n"
        f"  {shlex.join(words)}{rest}"
    )


def _options(words: Sequence[str]) -> list[list[str]]:
    """Each option with its value: a line for each."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            found.append([word])
        else:
            found[-1].append(word)
    return found


def agent_digest(client: Client) -> str:
    """The SHA-256 of the agent that a server gives out, over a connection that is verified."""
    answer = client.send("GET", "/agent.py", repeatable=True)
    if answer.status_code != OK:
        raise UnknownError(f"{client.server} gives out no agent", hint="ask who runs it")
    return hashlib.sha256(answer.content).hexdigest()


def authority_pin(client: Client) -> str:
    """The pin of the authority that signs for a server; empty when it does not say which.

    It says so over a connection that is verified; and the server's certificate must be by that one.
    """
    if urlsplit(client.server).scheme != "https":
        return ""
    answer = client.send("GET", "/ca.pem", repeatable=True)
    if answer.status_code != OK:
        return ""
    import ssl

    for text in _CERTIFICATE.findall(answer.text):
        if _signs_for(client.server, text):
            der = ssl.PEM_cert_to_DER_cert(text)
            return f"sha256:{hashlib.sha256(der).hexdigest()}"
    return ""


def _signs_for(server: str, authority: str) -> bool:
    """Whether a server's certificate is believed by who believes this authority only."""
    import ssl

    import httpx

    try:
        only = ssl.create_default_context(cadata=authority)
        httpx.get(f"{server}/healthz", verify=only, timeout=30.0)
    except (httpx.HTTPError, ssl.SSLError, ValueError):
        return False
    return True


def check_clear(server: str, *, allowed: bool) -> list[str]:
    """Refuse a server to which others could listen, unless allowed; gives the agent's option."""
    if not in_the_clear(server):
        return []
    if not allowed:
        raise RejectedError(
            f"{server} would carry the token, and who is root on the machine, in the clear",
            hint="put TLS before it, or say --insecure-http where nobody can listen",
        )
    return ["--insecure-http"]


def in_the_clear(server: str) -> bool:
    """Whether others could listen: http, and not to this very computer."""
    url = urlsplit(server)
    return url.scheme == "http" and not is_loopback(url.hostname or "")
