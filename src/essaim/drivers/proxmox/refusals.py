"""What a cluster means when it refuses: its sentences, sorted by what is to be done about them."""

from __future__ import annotations

import enum
import re


class Refusal(enum.StrEnum):
    """What is to be done about an answer that is none."""

    LOCKED = "locked"  #: somebody is at it, or too many are: ask again later
    TAKEN = "taken"  #: that id belongs to somebody else
    GONE = "gone"  #: there is no such machine, or not on that node
    RUNNING = "running"  #: it runs already
    STOPPED = "stopped"  #: it does not run
    DENIED = "denied"  #: the account may not
    FULL = "full"  #: there is no room on a storage
    LOST = "lost"  #: no answer, or none worth the name: a retry helps
    WRONG = "wrong"  #: it will say no again


_BAD_REQUEST, _UNAUTHORISED, _FORBIDDEN, _BROKEN = 400, 401, 403, 500

# In this order: a lock that could not be had is spelt in many ways, often with the reason behind.
_SENTENCES = (
    (Refusal.TAKEN, r"already exists|already in use|failed: File exists"),
    (
        Refusal.LOCKED,
        r"got timeout|got lock request timeout|is locked|can't lock file|can't ac?quire",
    ),
    (Refusal.LOCKED, r"lock request timeout|timeout waiting for (?:the )?lock|locked \("),
    (Refusal.RUNNING, r"already running|is running"),
    (Refusal.STOPPED, r"not running|is stopped"),
    (Refusal.GONE, r"configuration file '[^']*' does not exist|guest '?\d+'? does not exist"),
    (Refusal.GONE, r"no such (?:VM|CT|container|guest|config)|unable to find configuration"),
    (Refusal.FULL, r"not enough free space|no space left on device|out of space"),
    (Refusal.FULL, r"free space in thin pool \S+ reached threshold|disk quota exceeded"),
    (Refusal.DENIED, r"permission (?:check failed|denied)|authentication failure"),
    (Refusal.LOST, r"no quorum|not ready|connection (?:refused|timed out|reset)|no route to host"),
    (
        Refusal.LOST,
        r"broken pipe|unexpected status|forgotten|interrupted by signal|proxy|hostname lookup",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _SENTENCES)
#: What else may not exist, none of which a retry brings about, and who names it.
_MISSING = (
    (r"storage '[^']+' does not exist|no such storage", "storage: in the site file"),
    (r"pool '[^']+' does not exist", "pool: in the site file"),
    (r"bridge '[^']+' does not exist", "bridge: in the site file"),
    (r"no such cluster node '[^']+'", "nodes: in the site file"),
    (r"storage '[^']+' is not available on node", "storage: in the site file"),
    (
        r"no such user \('[^']+'\)|user '[^']+' does not exist",
        "user: or token: in the site file",
    ),
    (r"volume '?\S+ does not exist|cannot import from '", "the image"),
    (r"disk '[^']+' does not exist", "the template's configuration"),
)
_MISSINGS = tuple((re.compile(pattern, re.IGNORECASE), who) for pattern, who in _MISSING)
_PRIVILEGE = re.compile(r"\((/[^,]*), *([^)]+)\)")
_STORAGE = re.compile(r"storage-([A-Za-z0-9][A-Za-z0-9_.-]*)")
_GUEST = re.compile(r"lock-(\d+)\.conf|\b(?:CT|VM)(?: (\d+))? is locked")


def sort(code: int, text: str) -> Refusal:
    """Tell what an answer with that HTTP code and sentence means."""
    if code in (_UNAUTHORISED, _FORBIDDEN):
        # To name a pool that is not there is called a lack of rights.
        return Refusal.WRONG if named_by(text) else Refusal.DENIED
    for kind, pattern in _PATTERNS:
        if pattern.search(text):
            return kind
    if code == _BAD_REQUEST:
        return Refusal.WRONG
    # A node that cannot be reached is 595 to 599; a gateway in between has codes of its own.
    return Refusal.WRONG if code == _BROKEN and _says_something(text) else Refusal.LOST


def sort_end(text: str) -> Refusal:
    """Tell what the last line of a task that failed means."""
    return sort(_BROKEN, text)


def _says_something(text: str) -> bool:
    """Whether a 500 is the answer of a program to a question, and not that of a broken server."""
    return text.strip().lower() not in ("", "internal server error", "server error")


def named_by(text: str) -> str:
    """Which setting names something that is not there; nothing when the sentence is another."""
    return next((who for pattern, who in _MISSINGS if pattern.search(text)), "")


def missing_privilege(text: str) -> tuple[str, str]:
    """Which privilege is missing on which path, as far as the sentence tells."""
    found = _PRIVILEGE.search(text)
    return (found[2].strip(), found[1]) if found else ("", "")


def locked_where(text: str) -> tuple[str, int]:
    """Which storage, or which guest, could not be locked: (storage, 0), ("", id) or ("", 0)."""
    if found := _GUEST.search(text):
        return "", int(found[1] or found[2] or 0)
    found = _STORAGE.search(text)
    return (found[1], 0) if found else ("", 0)


def is_large_enough(text: str) -> bool:
    """Whether a disk was not resized because it has that size, or a larger one."""
    return "already at specified size" in text or "shrink" in text
