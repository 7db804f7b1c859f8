"""Ephemeral accounts on this machine: made, listed, removed, and proven to be gone."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.agent.access import KEYS, Entry, give_keys
from essaim.agent.belongings import (
    FIRST_UID,
    LAST_UID,
    MOST_FOUND,
    Belongings,
    legible,
    processes,
    searched_mounts,
    taken_uids,
)
from essaim.agent.common import NOTICES, SHELL, Trouble, remove_file, tool, write_file
from essaim.agent.expiry import (
    TERMS,
    Term,
    agreed,
    clocks,
    keep_day,
    last_day,
    put_term,
    term_of,
)
from essaim.agent.groups import GROUPS, Rented, limit_account, remove_groups
from essaim.agent.homes import home_of
from essaim.agent.keyrings import clear_keyrings, keys_of, note_uids, noted_uids
from essaim.agent.mounts import detach_mounts, left_mounts
from essaim.agent.traces import AclSearch, files_named_after, remove_files_named_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ACCOUNT = re.compile(r"l-[a-z0-9]{4,24}")
LOCKS = "/run/essaim-helper.lock"
LIMITS = {"processes": "nproc", "memory_mib": "data", "open_files": "nofile"}
_UNTIL = re.compile(r"essaim lease until ([0-9]+)")


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """Keep others from working on the same account; the empty name is for all accounts."""
    fd = os.open(LOCKS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # One byte of one file for each account: no lock file is left behind.
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, zlib.crc32(name.encode()))
        yield
    finally:
        os.close(fd)


def entry_of(account: str) -> pwd.struct_passwd | None:
    """Look an account up; one of that name that Essaim has not made is never touched."""
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        return None
    if not FIRST_UID <= entry.pw_uid <= LAST_UID:
        raise Trouble(f"{account} has uid {entry.pw_uid}: Essaim did not make it and leaves it")
    return entry


def known_accounts() -> list[pwd.struct_passwd]:
    """List the ephemeral accounts there are."""
    return [
        entry
        for entry in pwd.getpwall()
        if ACCOUNT.fullmatch(entry.pw_name) and FIRST_UID <= entry.pw_uid <= LAST_UID
    ]


def expiry_of(entry: pwd.struct_passwd) -> int:
    """Say when an account expires, in seconds since 1970; an account that does not say, at once."""
    found = _UNTIL.fullmatch(entry.pw_gecos)
    return int(found.group(1)) if found else 0


def listed() -> list[dict[str, Any]]:
    """Describe the ephemeral accounts there are."""
    return [
        {
            "account": entry.pw_name,
            "uid": entry.pw_uid,
            "processes": len(processes(lambda uid, own=entry.pw_uid: uid == own)),  # type: ignore[misc]
            "expires_at": expiry_of(entry),
        }
        for entry in known_accounts()
    ]


def make_account(
    *,
    account: str,
    keys: list[str],
    term: Term,
    limits: Mapping[str, int],
    rented: Rented,
    entry: Entry,
) -> int:
    """Make an account, or make one that is there as it should be; gives its uid."""
    words = ["-c", f"essaim lease until {term.expires_at}", "-e", last_day(term)]
    words += ["-p", "*", "-s", str(SHELL), "-d", home_of(account)]
    with held(account):
        there = entry_of(account)
        # First, so that whatever interrupts us, there is an account that can be found and removed.
        if there is None:
            _add(account, words)
        else:
            tool("usermod", *words, "-G", "", account)
        put_term(account, term)
        _write_limits(account, limits)
        limit_account(account, rented)
        made = pwd.getpwnam(account)
        _open_home(made)
        give_keys(account, keys, entry)
    return made.pw_uid


def next_uid() -> int:
    """Take the uid after the one that was taken last, so that it was another's long ago.

    Whoever calls this holds the lock of all accounts.
    """
    kept, taken = noted_uids(), taken_uids()
    count = LAST_UID + 1 - FIRST_UID
    # Machines that share a kernel begin at different places: so do its keyrings of theirs.
    last = kept["last"] or FIRST_UID + int.from_bytes(os.urandom(4), "big") % count
    turn = [FIRST_UID + (last - FIRST_UID + step) % count for step in range(1, count + 1)]
    free = [uid for uid in turn if uid not in taken]
    if not free:
        raise Trouble("this machine has no uid left for another account: remove some")
    # Not one whose keyrings could not be cleared, while there are others.
    kept["last"] = next((uid for uid in free if uid not in kept["used"]), free[0])
    kept["used"] = sorted({*kept["used"], kept["last"]})
    note_uids(kept)
    return int(kept["last"])


def _add(account: str, words: list[str]) -> None:
    with held(""):
        free = next_uid()
        with contextlib.suppress(KeyError):
            grp.getgrnam(account)
            tool("groupdel", account)  # an interrupted `useradd` left it
        tool("rm", "-rf", "--one-file-system", "--", home_of(account))
        tool("groupadd", "-g", str(free), account)
        # No range of further uids: what is owned by those would not be known as the account's.
        # No warning days before the day the system knows: that is not when the lease ends.
        more = ["-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0", "-K", "PASS_WARN_AGE=0"]
        tool("useradd", "-g", str(free), "-u", str(free), "-m", *more, *words, account)


def _write_limits(account: str, limits: Mapping[str, int]) -> None:
    lines = ["# Made by Essaim; goes with the account.", f"{account} - core 0"]
    for name, item in LIMITS.items():
        if limits.get(name):
            value = limits[name] * 1024 if name == "memory_mib" else limits[name]
            lines.append(f"{account} - {item} {value}")
    path = _limits_file(account)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_file(path, "\n".join(lines) + "\n", 0o644)


def _limits_file(account: str) -> Path:
    return Path("/etc/security/limits.d", f"essaim-{account}.conf")


def _open_home(entry: pwd.struct_passwd) -> None:
    path = entry.pw_dir
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102 - as the lines below, which pathlib cannot do
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(fd, entry.pw_uid, entry.pw_gid)
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def remove_account(account: str, *, due: bool = False) -> bool:
    """Remove an account with everything it has; also what vanished accounts have left.

    With `due` only if its time is over: False when it is not.
    """
    with held(account):
        entry = entry_of(account)
        # Asked again now that nobody else can extend it.
        if due and (entry is None or not _is_over(entry)):
            return False
        if entry is not None:
            # No new login: the account has long expired, and its keys are gone.
            tool("usermod", "-e", "1970-01-02", account)
            remove_file(KEYS / account)
        sweep(account)
        if entry is not None:
            tool("userdel", "-f", account, allow=(0, 6))
        with contextlib.suppress(KeyError):
            if FIRST_UID <= grp.getgrnam(account).gr_gid <= LAST_UID:
                tool("groupdel", account)
    return True


def _is_over(entry: pwd.struct_passwd) -> bool:
    """Say whether an account's time is over; one that is new to us is given a term first."""
    now, account = clocks(), entry.pw_name
    term = term_of(account, expiry_of(entry))
    if term is None:
        # Made by a playbook of somebody's own.  Its end is taken by this machine's clock.
        put_term(account, agreed(expiry_of(entry), now.wall, now))
        return False
    if term.left(now) > 0:
        keep_day(account, term, now)
        return False
    return True


def set_term(account: str, term: Term, rented: Rented | None = None) -> None:
    """Make an account that is there end at another time, and hold it to what it has rented."""
    with held(account):
        if entry_of(account) is None:
            raise Trouble(f"there is no account {account} on this machine")
        put_term(account, term)
        tool("usermod", "-e", last_day(term), account)
        if rented is not None:
            limit_account(account, rented)


def sweep(account: str) -> None:
    """Remove all that an account has on this machine, and what vanished ones have left."""
    things = _belongings(account)
    things.abort_fuse()
    _leave_systemd(account)
    ended = things.end_processes()
    things.remove_jobs(account)
    if ended:
        things.end_processes()  # what a job has started meanwhile
    things.remove_ipc()
    if account:
        remove_groups(account)
    others = [entry.pw_name for entry in known_accounts() if entry.pw_name != account]
    detach_mounts(things.has, lambda name: _is_leased(name, others))
    for path in _named(account):
        tool("rm", "-rf", "--one-file-system", "--", str(path), allow=(0, 1))
    things.remove_files()
    remove_files_named_after(things.has)
    AclSearch(things.has, things.spares, searched_mounts()).remove()
    _forget_keys(account)


def _forget_keys(account: str) -> None:
    """Clear the keyrings of this account, and of all that have vanished since the boot."""
    with held(""):
        kept = noted_uids()
        alive = {entry.pw_uid for entry in pwd.getpwall() if entry.pw_name != account}
        kept["used"] = [
            uid
            for uid in sorted({*kept["used"], *_own_uid(account)})
            if uid in alive or not clear_keyrings(uid)
        ]
        note_uids(kept)


def _own_uid(account: str) -> set[int]:
    """Give an account's uid, if it is there: a playbook may have chosen it."""
    entry = entry_of(account) if account else None
    return {entry.pw_uid} if entry else set()


def _is_leased(name: str, others: list[str]) -> bool:
    return name not in others and ACCOUNT.fullmatch(name) is not None


def proof(account: str, others: list[str]) -> list[str]:
    """Name everything that is left of an account and of all that are not among the others."""
    others = [name for name in others if name != account]
    spared = {e.pw_uid for e in known_accounts() if e.pw_name in others}
    things = Belongings(spared)
    found = [
        f"account {entry.pw_name}"
        for entry in pwd.getpwall()
        if FIRST_UID <= entry.pw_uid <= LAST_UID and entry.pw_uid not in spared
    ]
    with contextlib.suppress(KeyError):
        if account:
            grp.getgrnam(account)
            found.append(f"group {account}")
    mounts = left_mounts(things.has, lambda name: _is_leased(name, others))
    found += [f"mount {legible(mount.path)}" for mount in mounts]
    if any(mount.is_fuse() for mount in mounts):
        return [*found, "not searched: files, for such a mount may never answer"]
    found += [f"file {path}" for path in _named(account) if os.path.lexists(str(path))]
    for line in [*things.left(), *_traces(account, things)]:
        if line not in found:
            found.append(line)
    return found


def _traces(account: str, things: Belongings) -> list[str]:
    """Name what follows a uid though it does not own it."""
    found = [f"file {path}" for path in files_named_after(things.has)]
    search = AclSearch(things.has, things.spares, searched_mounts())
    found += [f"ACL on {legible(one.path)}" for one in search.entries()]
    found += [f"not searched: {legible(error)}" for error in search.errors]
    for uid in sorted({*noted_uids()["used"], *_own_uid(account)}):
        if things.has(uid):
            found += [f"keyring {name}" for name in keys_of(uid)]
    return found[:MOST_FOUND]


def _belongings(account: str) -> Belongings:
    """Mean all uids of the range but those of others, who are alive."""
    return Belongings({entry.pw_uid for entry in pwd.getpwall() if entry.pw_name != account})


def _named(account: str) -> list[Path]:
    """List the places that are an account's by their name, whoever owns them."""
    if not account:
        return []
    places = "/home /var/mail /var/spool/mail /var/spool/cron/crontabs /var/lib/systemd/linger"
    places += " /run/faillock /media /run/media /var/lib/AccountsService/users"
    places += (
        f" /run/sudo/ts /var/lib/sudo/lectured /var/lib/sudo/ts {NOTICES} {TERMS} {KEYS} {GROUPS}"
    )
    return [_limits_file(account), *(Path(place, account) for place in places.split())]


def _leave_systemd(account: str) -> None:
    """Let systemd end its own part, where there is one."""
    if not os.path.isdir("/run/systemd/system"):  # noqa: PTH112 - pathlib has nothing to add
        return
    with contextlib.suppress(Trouble):
        tool("loginctl", "disable-linger", account, allow=(0, 1))
        tool("loginctl", "terminate-user", account, allow=(0, 1))


def put_notice(account: str, text: str) -> None:
    """Leave a message that the account sees when it logs in; an empty one takes it back."""
    entry = entry_of(account)
    if entry is None:
        raise Trouble(f"there is no account {account} on this machine")
    if not text.strip():
        remove_file(NOTICES / account)
        return
    NOTICES.mkdir(mode=0o755, exist_ok=True)
    shown = "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
    write_file(NOTICES / account, shown.rstrip() + "\n", 0o640, gid=entry.pw_gid)
