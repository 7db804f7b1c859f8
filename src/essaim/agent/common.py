"""What all parts of the agent share: places, sentences for people, and how programs are run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT_VERSION = "2"
SERVICE = "essaim"  #: the account the agent runs as, and the control plane logs in as
STATE = Path("/var/lib/essaim")  #: the service account's home
PROGRAMS = Path("/usr/local/lib/essaim")
HELPER = PROGRAMS / "helper"
SHELL = PROGRAMS / "shell"
NOTICES = Path("/var/lib/essaim-helper")  #: messages to accounts, written by root
HELPER_LOG = Path("/var/log/essaim-helper.log")
SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Seconds a single program may take; looking at every file of a large disk is the longest.
PROGRAM_WITHIN = 900


class Trouble(Exception):  # noqa: N818 - it is a sentence for a person, not a class of errors
    """A sentence that says what is wrong and what to do; `again` when a retry may help."""

    def __init__(self, sentence: str, *, again: bool = False, code: int = 1) -> None:
        super().__init__(sentence)
        self.again = again
        self.code = code


def tool(*words: str, allow: tuple[int, ...] = (0,)) -> str:
    """Run a program of the system to its end and give what it printed."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": SAFE_PATH, "LC_ALL": "C"},
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=PROGRAM_WITHIN,
        )
    except FileNotFoundError as exc:
        raise Trouble(f"the program {words[0]} is missing on this machine: install it") from exc
    except subprocess.TimeoutExpired as exc:
        raise Trouble(f"{words[0]} did not end in {PROGRAM_WITHIN} s", again=True) from exc
    if done.returncode not in allow:
        said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        # The tools of the password files give up after some seconds when another one has them.
        raise Trouble(
            f"{words[0]} failed with {done.returncode}: {said}", again="lock" in said.lower()
        )
    return done.stdout


def write_file(path: Path, text: str, mode: int, *, gid: int = 0) -> None:
    """Put a file in place whole, owned by whoever runs this; its folder is not a user's."""
    draft = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(str(draft), flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        if gid:
            os.fchown(file.fileno(), -1, gid)
        os.fchmod(file.fileno(), mode)
    draft.replace(path)


def remove_file(path: Path) -> None:
    """Remove a file; nothing if it is not there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


def drop_to(uid: int, gid: int) -> None:
    """Become an ordinary user for good."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def as_user(uid: int, gid: int, work: Callable[[], Any]) -> Any:
    """Do something in a child that has become the user; gives what it gave, as JSON can carry it.

    Whatever files a user has prepared, the child can do no more than the user could.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            drop_to(uid, gid)
            os.umask(0o077)
            answer = {"answer": work()}
            code = 0
        except Trouble as exc:
            answer = {"trouble": str(exc), "code": exc.code, "again": exc.again}
        except OSError as exc:
            answer = {"trouble": str(exc)}
        except BaseException as exc:  # noqa: BLE001 - a child must never return into the parent
            answer = {"trouble": f"{type(exc).__name__}: {exc}"}
        with contextlib.suppress(OSError), os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    told = json.loads(text or '{"trouble": "the child process was ended"}')
    if "trouble" in told:
        raise Trouble(told["trouble"], again=told.get("again", False), code=told.get("code", 1))
    return told["answer"]
