"""What the sandbox needs of the computer, each with the command that puts it right."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from essaim.drivers.doctor import Check
from essaim.drivers.sandbox import idmap
from essaim.drivers.sandbox.cgroups import Cgroups
from essaim.model.errors import SetupError

#: A plain user's own may lack the administrator's directories.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc")
USER_NAMESPACE = ("--user", "--map-auto", "--map-root-user")
_HIGHEST_ID = 65000  #: Debian's own accounts go up to there


def doctor(state: Path = Path("/")) -> list[Check]:
    """Check everything the sandbox needs, as the user who asks; machines are kept at `state`."""
    checks = [_unshare()]
    if os.geteuid() != 0:
        checks += [_newuidmap(), _subids()]
    if all(check.ok for check in checks):
        trial = _trial()
        # A forbidding setting is no fault where a profile makes an exception of it.
        checks += [trial, _isolation(state), _limits()] if trial.ok else [*_sysctls(), trial]
    return checks


def blame(said: str) -> None:
    """Raise SetupError if the computer is why a keeper did not start; `said` is what it said."""
    for check in doctor():
        if not check.ok:
            raise SetupError(f"sandbox: {check.name} is missing: {said}", hint=check.text)
    if said:
        raise SetupError(f"sandbox: the keeper cannot start: {said}", hint="run `essaim doctor`")


def _unshare() -> Check:
    program = shutil.which("unshare", path=PATH)
    if program is None:
        return Check("unshare", ok=False, text="sudo apt-get install util-linux")
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    if os.geteuid() != 0 and "--map-auto" not in said:
        return Check("unshare", ok=False, text="util-linux 2.38 or newer is needed (Debian 12)")
    return Check("unshare", ok=True, text=program)


def _newuidmap() -> Check:
    program = shutil.which("newuidmap", path=PATH)
    if program is None:
        return Check("newuidmap", ok=False, text="sudo apt-get install uidmap")
    return Check("newuidmap", ok=True, text=program)


def _subids() -> Check:
    user = getpass.getuser()
    for name in ("/etc/subuid", "/etc/subgid"):
        if not _has_range(Path(name), user):
            return Check(
                "subordinate ids",
                ok=False,
                text=f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}",
            )
    return Check("subordinate ids", ok=True, text=f"/etc/subuid and /etc/subgid name {user}")


def _has_range(path: Path, user: str) -> bool:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    owner = re.compile(rf"(?:{re.escape(user)}|{os.geteuid()}):\d+:(\d+)")
    return any((found := owner.fullmatch(line)) and int(found[1]) > _HIGHEST_ID for line in lines)


def _sysctls() -> list[Check]:
    if os.geteuid() == 0:
        return []
    wanted = {
        "kernel.unprivileged_userns_clone": "1",
        "kernel.apparmor_restrict_unprivileged_userns": "0",
    }
    checks = []
    for key, value in wanted.items():
        path = Path("/proc/sys", key.replace(".", "/"))
        if path.exists():
            ok = path.read_text(encoding="ascii").strip() == value
            checks.append(Check(key, ok=ok, text=f"sudo sysctl -w {key}={value}"))
    limit = Path("/proc/sys/user/max_user_namespaces")
    if limit.exists():
        ok = int(limit.read_text(encoding="ascii")) > 0
        text = "sudo sysctl -w user.max_user_namespaces=10000"
        checks.append(Check("user.max_user_namespaces", ok=ok, text=text))
    return checks


def _limits() -> Check:
    """Say whether machines are held to their size; they run without that, so it is no fault."""
    rootless = os.geteuid() != 0
    note = Cgroups.find(Path("/doctor"), rootless=rootless).note
    if rootless and note:
        note += "; with systemd: systemd-run --user --scope -p Delegate=yes essaim up …"
    return Check("limits", ok=True, text=note or "cores and memory of machines are enforced")


def _isolation(state: Path) -> Check:
    """Say what root of a machine is here; machines run without a user namespace too."""
    if os.geteuid() != 0 or idmap.in_user_namespace():
        return Check("isolation", ok=True, text="machines are in a user namespace")
    place = next(path for path in (state, *state.parents) if path.is_dir())
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-I", "-S", idmap.__file__, str(place)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": PATH},
    )
    said = done.stdout.strip() or done.stderr.strip()
    text = f"{idmap.NO_NAMESPACE}: {said}" if said else "each machine has its own user namespace"
    return Check("isolation", ok=True, text=text)


def _trial() -> Check:
    """Make the namespaces for real: containers and policies forbid them in many ways."""
    user = USER_NAMESPACE if os.geteuid() != 0 else ()
    command = ["unshare", *user, *NAMESPACES, "true"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": PATH}
    )
    if done.returncode == 0:
        return Check("namespaces", ok=True, text="can be made")
    return Check(
        "namespaces",
        ok=False,
        text=f"{done.stderr.strip()}; inside a container, allow it: --privileged",
    )
