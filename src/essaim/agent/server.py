"""What the agent tells the server and hears from it, and what it keeps between its lives."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import pwd
import re
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from essaim.agent.common import AGENT_VERSION, Trouble, write_file
from essaim.agent.groups import kind_of_groups, machine_memory
from essaim.agent.identity import host_key_of

if TYPE_CHECKING:
    import ssl
    from urllib.error import HTTPError

REFUSED = 3  #: the exit code after which starting again is of no use
ANSWER_WITHIN = 15.0
LONGEST_ANSWER = 1 << 20
HTTP_UNAUTHORISED = 401
HTTP_ABSENT = 404
#: What the agent cannot do without.
NEEDED = frozenset({"id", "credential", "server", "interval", "tunnel"})
_LEASED = re.compile(r"l-[a-z0-9]{4,24}")
_PIN = re.compile(r"sha256:[0-9a-f]{64}")
_CERTIFICATE = re.compile(
    "-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\\s]+-----END CERTIFICATE-----", re.ASCII
)


class RefusedError(Trouble):
    """The server does not know this agent, or not any more."""


class AbsentError(Trouble):
    """The server has nothing at that path: it is of an earlier release."""


class Server:
    """The control plane as an agent sees it.  Only a verified one is believed.

    `ca` is the text of certificates to trust instead of the system's.
    """

    def __init__(self, address: str, *, ca: str = "", insecure: bool = False) -> None:
        self.address = address.rstrip("/")
        url = _address(self.address)
        if url.scheme == "http" and not _loopback(url.hostname or ""):
            if not insecure:
                raise Trouble(
                    f"{address} would carry the credential in the clear: use https, "
                    "or --insecure-http where nobody can listen"
                )
            sys.stderr.write(
                f"WARNING: whoever can listen on the way to {address} can pose as us\n"
            )
        from urllib import request as web  # noqa: PLC0415 - heavy, and no helper needs it

        # No handler for redirects: a credential goes to the server it was given by, and no other.
        self._opener = web.OpenerDirector()
        self._opener.add_handler(web.HTTPDefaultErrorHandler())
        self._opener.add_handler(web.HTTPErrorProcessor())
        if url.scheme == "http":
            self._opener.add_handler(web.HTTPHandler())
        else:
            self._opener.add_handler(web.ProxyHandler())
            self._opener.add_handler(web.HTTPSHandler(context=_trust(ca)))

    def post(
        self,
        path: str,
        body: dict[str, Any],
        credential: str = "",
        more: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a JSON object and give the answer; Trouble says what the server said.

        `more` are headers.
        """
        from http.client import HTTPException  # noqa: PLC0415 - heavy, and no helper needs it
        from urllib import error  # noqa: PLC0415
        from urllib import request as web  # noqa: PLC0415

        headers = {"Content-Type": "application/json", "User-Agent": f"essaim/{AGENT_VERSION}"}
        headers.update(more or {})
        if credential:
            headers["Authorization"] = f"Bearer {credential}"
        request = web.Request(  # noqa: S310 - the scheme was checked
            self.address + path, json.dumps(body).encode(), headers
        )
        try:
            with self._opener.open(request, timeout=ANSWER_WITHIN) as response:
                answer = json.loads(response.read(LONGEST_ANSWER) or b"{}")
        except error.HTTPError as exc:
            with exc:
                raise _refusal(self.address, exc) from exc
        except (OSError, ValueError, HTTPException) as exc:
            raise _silence(self.address, getattr(exc, "reason", exc)) from exc
        if not isinstance(answer, dict):
            raise Trouble(f"{self.address} answers, but not as Essaim does", again=True)
        return answer


def _address(address: str) -> SplitResult:
    """Read the address of a server; Trouble when it is none."""
    with contextlib.suppress(ValueError):
        url = urlsplit(address)
        if url.scheme in {"http", "https"} and url.hostname and url.port != 0:
            return url
    raise Trouble(f"{address} is not a server: say https://NAME or https://NAME:PORT")


def _silence(address: str, reason: object) -> Trouble:
    """Say why a server could not be talked to, and what to do."""
    import ssl  # noqa: PLC0415 - heavy, and the helper never needs it

    if isinstance(reason, ssl.SSLCertVerificationError):
        return _distrust(address, reason)
    if isinstance(reason, ssl.SSLError):
        why = (reason.reason or "").replace("_", " ").lower() or str(reason)
        return Trouble(
            f"{address} does not speak TLS as this machine does ({why}): is the port right, and "
            "is it https?",
            again=True,
        )
    why = str(getattr(reason, "strerror", None) or reason)
    sentence = f"{address} does not answer: {why}"
    if _loopback(urlsplit(address).hostname or ""):
        sentence += "; this address is the machine itself: say how it reaches the server"
    return Trouble(sentence, again=True)


def _distrust(address: str, error: ssl.SSLCertVerificationError) -> Trouble:
    """Say what is wrong with a certificate, and what to do."""
    why = error.verify_message
    if "not yet valid" in why or "expired" in why:
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return Trouble(
            f"{address} shows a certificate that is not valid now ({why}): this machine's clock "
            f"says {now}; set it if that is wrong, else renew the certificate",
            again=True,
        )
    if "match" in why or "not valid for" in why:
        return Trouble(
            f"{address} shows a certificate of another name ({why}): use the name it is made for",
            again=True,
        )
    return Trouble(
        f"{address} shows a certificate that this machine does not trust ({why}): name its "
        "authority with --ca FILE",
        again=True,
    )


def fetch_authority(address: str, pin: str) -> str:
    """Fetch the certificate of the server's authority, and give it if it is the pinned one.

    Nobody is believed here: the pin, the SHA-256 of the certificate, says whether it is right.
    """
    import hashlib  # noqa: PLC0415 - heavy, and no helper needs it
    import ssl  # noqa: PLC0415
    from urllib import request as web  # noqa: PLC0415

    if not _PIN.fullmatch(pin):
        raise Trouble(f"{pin} is no pin: say sha256: and 64 hexadecimal digits")
    if _address(address).scheme != "https":
        raise Trouble(f"{address} shows no certificate that a pin could be of: say https://NAME")
    open_to_all = ssl.create_default_context()
    open_to_all.check_hostname, open_to_all.verify_mode = False, ssl.CERT_NONE
    place = f"{address.rstrip('/')}/ca.pem"
    try:
        with web.urlopen(place, timeout=ANSWER_WITHIN, context=open_to_all) as answer:  # noqa: S310 - the scheme was checked
            text = answer.read(LONGEST_ANSWER).decode("ascii")
    except (OSError, ValueError) as exc:
        raise Trouble(f"{place} cannot be fetched: {getattr(exc, 'reason', exc)}") from exc
    found = _CERTIFICATE.findall(text)
    pins = [f"sha256:{hashlib.sha256(ssl.PEM_cert_to_DER_cert(one)).hexdigest()}" for one in found]
    if pin not in pins:
        raise Trouble(
            f"{place} is not the certificate authority that this machine was told to trust "
            f"({pin}): somebody stands between, or the authority was changed; "
            "`essaim nodes enrol` prints a new line",
            code=REFUSED,
        )
    return f"{found[pins.index(pin)]}\n"


def _trust(ca: str) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - heavy, and the helper never needs it

    try:
        return ssl.create_default_context(cadata=ca or None)
    except (OSError, ValueError) as exc:
        raise Trouble(f"what --ca named holds no certificates: {exc}") from exc


def _refusal(address: str, error: HTTPError) -> Trouble:
    said = error.reason
    with contextlib.suppress(OSError, ValueError, AttributeError):
        problem = json.loads(error.read(LONGEST_ANSWER))
        said = problem.get("detail") or problem.get("title") or said
        said += f"; {problem['hint']}" if problem.get("hint") else ""
    if error.code == HTTP_UNAUTHORISED:
        return RefusedError(f"{address} refuses us: {said}", code=REFUSED)
    if error.code == HTTP_ABSENT:
        return AbsentError(f"{address} answers {error.code}: {said}")
    return Trouble(f"{address} answers {error.code}: {said}", again=error.code >= 500)  # noqa: PLR2004


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ask_challenge(server: Server, token: str) -> str:
    """Ask for what the host key shall sign; empty when the server is of an earlier release."""
    try:
        return str(server.post("/api/workers/challenge", {"token": token}).get("challenge") or "")
    except AbsentError:
        return ""


def describe_node(
    *, address: str, port: int, tunnel: bool, server: str, labels: dict[str, str]
) -> dict[str, Any]:
    """Describe this machine as it is announced."""
    if kind_of_groups() == "none":
        labels = {"limits": "none", **labels}
    told = {
        "cores": len(os.sched_getaffinity(0)),
        "memory": machine_memory(),
        "labels": labels,
        "port": port,
        "host_key": host_key_of(port),
        "tunnel": tunnel,
        "agent_version": AGENT_VERSION,
    }
    if not tunnel:
        told["address"] = address or _own_address(server)
    return told


def beat_of(last: int) -> dict[str, Any]:
    """Describe how this machine is now; `seq` grows as long as it is not booted anew."""
    # Time since boot grows also while no agent runs, so nothing needs to be remembered.
    since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    return {
        "load": round(os.getloadavg()[0], 2),
        "accounts": sorted(e.pw_name for e in pwd.getpwall() if _LEASED.fullmatch(e.pw_name)),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "seq": max(last + 1, since),
    }


def _own_address(server: str) -> str:
    """Give the address this machine has on the way to the server; nothing is sent."""
    url = urlsplit(server)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        family, _, _, _, place = socket.getaddrinfo(url.hostname, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise Trouble(f"the way to {server} was not found: {exc}; or say --address") from exc


class State:
    """What the agent keeps: who it is and how it proves that, and how its last beat went."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = folder / "node.json"
        self.last = folder / "beat.json"
        self.tunnel_key = folder / "tunnel_key"
        self.known_hosts = folder / "known_hosts"

    def read(self) -> dict[str, Any]:
        """Give what was kept; Trouble when this machine has not joined."""
        try:
            kept = json.loads(self.node.read_text())
        except FileNotFoundError:
            raise Trouble(
                f"this machine has not joined a fleet ({self.node} is missing): "
                "agent.py join --server URL --token TOKEN",
                code=REFUSED,
            ) from None
        except (OSError, ValueError) as exc:
            raise Trouble(f"{self.node} cannot be read: {exc}", code=REFUSED) from exc
        if not isinstance(kept, dict) or not kept.keys() >= NEEDED:
            raise Trouble(f"{self.node} is damaged: join again with a new token", code=REFUSED)
        return kept

    def write(self, kept: dict[str, Any]) -> None:
        """Keep who we are, and let the control plane in."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(self.node, json.dumps(kept, indent=1) + "\n", 0o600)
        if kept.get("server_public_key"):
            admit(self.folder, kept["server_public_key"])

    def note(self, **how: Any) -> None:
        """Keep how the last beat went, for `status`."""
        with contextlib.suppress(OSError):
            write_file(self.last, json.dumps({"at": int(time.time()), **how}) + "\n", 0o600)


def admit(home: Path, key: str) -> None:
    """Let the holder of a key, and nobody else, log in as the service account."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_file(folder / "authorized_keys", " ".join(key.split()) + "\n", 0o600)
