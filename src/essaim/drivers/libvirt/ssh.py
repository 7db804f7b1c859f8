"""The way to a server: one folder with all that OpenSSH needs, for us and for libvirt."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path

from essaim.drivers.libvirt import dial
from essaim.drivers.libvirt.settings import Settings
from essaim.model.errors import EssaimError, RejectedError, SetupError, TransientError

#: Seconds a master outlives its last user.
_IDLE = 300
#: Under this name the server's key is known, whatever the address it is reached by.
_ALIAS = "essaim-server"
_WRAPPER = "ssh"


def lay_out(settings: Settings, state: Path) -> Path:
    """Write what OpenSSH needs to reach the server; the folder.  Safe to repeat, by anybody."""
    mark = hashlib.sha256(repr(settings).encode() + os.fsencode(state)).hexdigest()[:8]
    folder = _private(state.absolute() / f"ssh-{mark}")
    _write(folder / "known_hosts", f"{_ALIAS} {settings.host_key}\n")
    _write(folder / dial.CONFIG, _config(settings, folder))
    command = shlex.join(dial.ssh(folder))
    go = f"cd {shlex.quote(str(folder))} && exec {command}"
    _write(folder / _WRAPPER, f'#!/bin/sh\n{go} "$@"\n', mode=0o700)
    return folder


def wrapper(folder: Path) -> Path:
    """The program that libvirt runs instead of `ssh`."""
    return folder / _WRAPPER


def _private(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SetupError(f"{folder} cannot be made: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SetupError(
            f"{folder} is open to others than {os.getuid()}", hint="remove it, or chmod 700 it"
        )
    return folder


def _config(settings: Settings, folder: Path) -> str:
    lines = {
        "HostKeyAlias": _ALIAS,
        "UserKnownHostsFile": _quoted(folder / "known_hosts"),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "VerifyHostKeyDNS": "no",
        "BatchMode": "yes",
        "ControlMaster": "no",
        "ControlPath": f"{dial.HERE}/{dial.MASTER}",
        "ControlPersist": str(_IDLE),
        "StreamLocalBindUnlink": "yes",
        "StreamLocalBindMask": "0177",
        "ClearAllForwardings": "yes",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "4",
        "ConnectTimeout": "15",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "RequestTTY": "no",
        "LogLevel": "ERROR",
    }
    if settings.user:
        lines["User"] = settings.user
    if settings.port:
        lines["Port"] = str(settings.port)
    if settings.key:
        lines["IdentityFile"] = _quoted(Path(settings.key).expanduser().absolute())
        lines["IdentitiesOnly"] = "yes"
    own = "".join(f"  {key} {value}\n" for key, value in lines.items())
    # The first value wins: what the user's own files say, such as ProxyJump, fills the gaps.
    return f"Host {settings.host}\n{own}Match all\nInclude ~/.ssh/config /etc/ssh/ssh_config\n"


def _quoted(path: Path) -> str:
    text = str(path).replace("%", "%%")
    if '"' in text or "\n" in text:
        raise RejectedError(f"{path} cannot be used: OpenSSH knows no way to write its name")
    return f'"{text}"'


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file unless it is so already; nobody ever sees half of it."""
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    fd, fresh = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    Path(fresh).chmod(mode)
    Path(fresh).rename(path)


def run(
    folder: Path, settings: Settings, words: tuple[str, ...], body: bytes, within: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a program on the server; its exit code is a result, an unreachable server an error."""
    try:
        dial.raise_master(folder, settings.host)
        done = subprocess.run(
            dial.ssh(folder, "-T", settings.host, shlex.join(words)),
            input=body,
            capture_output=True,
            timeout=within,
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TransientError(
            f"site {settings.site}: `{words[0]}` did not end in {within:.0f} s there"
        ) from error
    except dial.SshError as error:
        raise explain(settings, str(error)) from error
    if done.returncode == 255:  # noqa: PLR2004 - ssh's own code, for its own failures
        raise explain(settings, done.stderr.decode(errors="replace").strip())
    return done


def explain(settings: Settings, said: str) -> EssaimError:
    """What OpenSSH's words mean, and what to do."""
    where = f"site {settings.site}: {settings.host}"
    if "verification failed" in said or "IDENTIFICATION HAS CHANGED" in said:
        return RejectedError(
            f"{where} shows another host key than the site's host_key",
            hint="find out why before you change host_key: somebody may pose as the server",
        )
    if "Permission denied" in said or "no such identity" in said:
        return RejectedError(
            f"{where} does not let this account in: {said}",
            hint="see the site's `key`, and whether its public half is in authorized_keys there",
        )
    return TransientError(f"{where} cannot be reached: {said}", hint="is it up? try ssh yourself")
