"""Who reads the logs of a container does not become its administrator."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess

import pytest

from api.rig import wait_for
from cli.person import COMMAND
from essaim.bootstrap import App
from essaim.usecases.credentials import right_password


def environ(home) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "ESSAIM_HOME": str(home / "state"),
    }


def passwords(said: str, home) -> list[str]:
    """The words somebody could log in with as the administrator."""
    with contextlib.closing(App(environ(home))) as app:
        _admin, kept = app.people.find("admin")
        words = {word for word in re.split(r"\s+", said) if len(word) == 20}
        return [word for word in words if right_password(kept, word)]


@pytest.fixture(params=["api", "serve"])
def words(request):
    more = ["--gateway-port", "0"] if request.param == "serve" else ["--drain", "0"]
    return [*COMMAND, request.param, "--port", "0", *more]


def test_no_log_has_the_first_password(words, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(words, env=environ(tmp_path), stdout=file, stderr=file)
    try:
        wait_for(lambda: re.search(r"\bready\b", log.read_text()) or process.poll() is not None)
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    assert passwords(log.read_text(), tmp_path) == []
    kept = tmp_path / "state" / "admin-password"
    assert str(kept) in log.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert len(passwords(kept.read_text(), tmp_path)) == 1
    left = [each.name for each in kept.parent.iterdir() if "admin-password" in each.name]
    assert left == ["admin-password"]


def test_a_person_at_a_terminal_is_shown_it_once(tmp_path):
    ours, theirs = pty.openpty()
    words = [*COMMAND, "serve", "--port", "0", "--gateway-port", "0"]
    process = subprocess.Popen(words, env=environ(tmp_path), stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while b"Ctrl-C ends it" not in said:
            said += os.read(ours, 4096)
    finally:
        process.terminate()
        assert process.wait(60) == 0
        os.close(ours)
    assert len(passwords(said.decode(), tmp_path)) == 1
    assert not (tmp_path / "state" / "admin-password").exists()


def test_an_account_whose_password_cannot_be_told_is_not_made(tmp_path):
    home = tmp_path / "state"
    home.mkdir()
    database = {"ESSAIM_DATABASE": f"sqlite:///{tmp_path}/essaim.db"}
    (home / "keys").mkdir()
    # A name that cannot be a file's: nobody, not even root, writes there.
    env = {**environ(tmp_path), **database, "ESSAIM_KEYS": str(home / "keys")}
    env["ESSAIM_HOME"] = "/proc/nowhere"
    words = [*COMMAND, "api", "--port", "0", "--drain", "0"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "cannot be written" in done.stderr
    with contextlib.closing(App(env)) as app:
        assert app.people.list() == []
