"""The machine's SSH host key: which one clients see, and the proof that it is ours."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from essaim.agent.common import SAFE_PATH, Trouble, tool

#: What the host key signs for a server, and nothing else.
NAMESPACE = "essaim-register"
_CHALLENGE = re.compile(r"challenge_[A-Za-z0-9_-]{20,200}")


def host_key_of(port: int) -> str:
    """Give the key SSH clients of this machine will see."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        words = ["ssh-keyscan", "-T", "5", "-t", "ed25519", "-p", str(port), "127.0.0.1"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
        lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
        if lines:
            return " ".join(lines[0][1:3])
    for kind in ("ed25519", "ecdsa", "rsa"):
        with contextlib.suppress(OSError):
            text = Path(f"/etc/ssh/ssh_host_{kind}_key.pub").read_text()
            return " ".join(text.split()[:2])
    raise Trouble(
        f"no SSH server answers on port {port} of this machine: install openssh-server and start "
        "it, or say --port"
    )


def sign_challenge(challenge: str, host_key: str) -> str:
    """Sign a server's challenge with the private half of a host key; empty when it cannot.

    Needs root.  Nothing but a challenge is signed, whoever asks.  Whether a machine may join
    without, one whose OpenSSH is too old to sign for instance, is the server's to say.
    """
    if not _CHALLENGE.fullmatch(challenge):
        raise Trouble("what a host key signs is a challenge of a server; this is none")
    path = _private_half(host_key)
    if path is None:
        return ""
    folder = tempfile.mkdtemp(prefix="essaim-")
    try:
        text = Path(folder) / "challenge"
        text.write_text(challenge)
        tool("ssh-keygen", "-q", "-Y", "sign", "-f", str(path), "-n", NAMESPACE, str(text))
        lines = Path(f"{text}.sig").read_text().split("\n")
    except Trouble as exc:
        sys.stderr.write(f"WARNING: {path} signs nothing: {exc}\n")
        return ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return "".join(line for line in lines if line and not line.startswith("-----"))


def _private_half(host_key: str) -> Path | None:
    """Find the file of a host key, where sshd has it or in the usual place."""
    places = sorted(Path("/etc/ssh").glob("ssh_host_*_key"))
    sshd = shutil.which("sshd", path=SAFE_PATH)
    if sshd:
        with contextlib.suppress(Trouble):
            told = [line.split() for line in tool(sshd, "-T", allow=(0, 1, 255)).splitlines()]
            places += [Path(words[1]) for words in told if words[:1] == ["hostkey"]]
    for path in places:
        with contextlib.suppress(OSError, Trouble):
            if os.access(str(path), os.R_OK):
                public = tool("ssh-keygen", "-y", "-P", "", "-f", str(path))
                if public.split()[:2] == host_key.split()[:2]:
                    return path
    return None
