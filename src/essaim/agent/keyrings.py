"""Kernel keyrings that outlive the processes of a uid, and which uids may have some.

A user, a user session and a persistent keyring belong to the uid and not to a process, so that
they would be the next account's.  Each is cleared and then invalidated, for its owner may have
taken every right but to search it from everybody.  One that cannot even be searched nobody can
use; its uid is not given out again before a boot.

`/proc/keys` is no proof: in a container it also shows keys of the same uid in other containers.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from essaim.agent.common import NOTICES, as_user, write_file

#: The last uid that was given out, and those of this boot that may have keyrings.
UIDS = NOTICES / "uids"
#: The number of the system call; on architectures that came later it is 219.
_KEYCTL = {"x86_64": 250, "i686": 288, "armv7l": 311, "ppc64le": 271, "s390x": 280}
_ID, _JOIN, _SETPERM, _CLEAR, _READ, _INVALIDATE, _PERSISTENT = 0, 1, 5, 7, 11, 21, 22
_SESSION, _USER, _USER_SESSION = -3, -4, -5
_ALL_RIGHTS = 0x3F3F0000
_KEY_SIZE = 4  #: bytes of a key's number
_GONE_WITHIN = 2.0
#: A kernel without keyrings, or a container that may not use them.
_NONE = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)


def noted_uids() -> dict[str, Any]:
    """Give the last uid and the list of those used since the boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        kept = json.loads(UIDS.read_text())
        last, used = int(kept["last"]), [int(uid) for uid in kept["used"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {"last": 0, "boot_id": boot, "used": []}
    return {"last": last, "boot_id": boot, "used": used if kept["boot_id"] == boot else []}


def note_uids(kept: dict[str, Any]) -> None:
    """Keep it; whoever calls this holds the lock of all accounts."""
    NOTICES.mkdir(mode=0o755, exist_ok=True)
    write_file(UIDS, json.dumps(kept) + "\n", 0o600)


def clear_keyrings(uid: int) -> bool:
    """Empty and drop the keyrings of a uid; False when that is not allowed to anybody."""
    as_user(0, 0, lambda: [_drop(ring) for ring in _persistent(uid)])
    return bool(as_user(uid, uid, _clear_own))


def keys_of(uid: int) -> list[str]:
    """Name the keyrings of a uid that hold something."""
    names: list[str] = as_user(uid, uid, _held_by_own)
    if as_user(0, 0, lambda: any(_keys_in(ring) for ring in _persistent(uid))):
        names.append("_persistent")
    return [f"{name}.{uid}" for name in names]


def _persistent(uid: int) -> list[int]:
    """Give the persistent keyring of a uid: to root, whom no quota that is used up can stop."""
    ring = _call(_PERSISTENT, uid, _SESSION) if -_call(_JOIN, None) not in _NONE else 0
    return [ring] if ring > 0 else []


def _drop(ring: int) -> bool:
    """Clear a keyring and let the kernel forget it; says whether it will."""
    _call(_SETPERM, ring, _ALL_RIGHTS)
    _call(_CLEAR, ring)
    return _call(_INVALIDATE, ring) == 0


def _clear_own() -> bool:
    rings = _own_rings()
    for _, ring in rings:
        until = time.monotonic() + _GONE_WITHIN
        # The kernel drops it a moment later, and only then makes a new one.
        if _drop(ring) and ring < 0:
            while not _searchable() and time.monotonic() < until:
                time.sleep(0.002)
    return not rings or _searchable()


def _searchable() -> bool:
    return all(_call(_ID, ring, 0) >= 0 for ring in (_USER, _USER_SESSION))


def _held_by_own() -> list[str]:
    found = []
    for name, ring in _own_rings():
        # The session keyring of a uid always leads to its user keyring.
        spared = {_call(_ID, _USER, 0)} if ring == _USER_SESSION else set()
        if _keys_in(ring) - spared:
            found.append(name)
    return found


def _own_rings() -> list[tuple[str, int]]:
    """List the keyrings of the user that this process is; none where there are none."""
    # Not the session of whoever started us, which is another's.
    if -_call(_JOIN, None) in _NONE:
        return []
    rings = [("_uid", _USER), ("_uid_ses", _USER_SESSION)]
    if not _searchable():
        # One that nobody may search hides the other, which its number still opens.
        rings += _numbered(f"_uid.{os.getuid()}", f"_uid_ses.{os.getuid()}")
    return rings


def _numbered(*names: str) -> list[tuple[str, int]]:
    """Find keyrings by their names; the kernel lists those that we may view."""
    found = []
    try:
        lines = Path("/proc/keys").read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        words = line.split()
        if words[7] == "keyring" and words[8].rstrip(":") in names and "i" not in words[1]:
            found.append((words[8].split(".")[0], int(words[0], 16)))
    return found


def _keys_in(ring: int) -> set[int]:
    import ctypes  # noqa: PLC0415 - slow to load, and few calls of the helper need it

    room = (ctypes.c_int32 * 4096)()
    size = _call(_READ, ring, room, ctypes.sizeof(room))
    return set(room[: min(max(size, 0) // _KEY_SIZE, len(room))])


def _call(*words: Any) -> int:
    """Call keyctl(2); gives the number of what went wrong, negative, as the kernel does."""
    import ctypes  # noqa: PLC0415 - as above

    values = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    answer = int(libc.syscall(ctypes.c_long(_KEYCTL.get(os.uname().machine, 219)), *values))
    return answer if answer >= 0 else -ctypes.get_errno()
