"""Programs and ports of the computer at hand."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading

import pytest

from essaim.model.errors import SetupError
from essaim_lab import computer


def test_a_program_that_is_there_needs_no_package():
    computer.need({"sh": "no-such-package", sys.executable: "no-such-package"})
    assert computer.find("sh", "no-such-package").endswith("/sh")


def test_whoever_may_not_install_is_told_the_packages_once(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="not installed: one two") as caught:
        computer.need({"no-such-a": "two", "no-such-b": "one", "/no/such/c": "one"})
    assert caught.value.hint == "sudo apt-get install one two"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs")
def test_a_package_that_does_not_exist_is_said_with_the_words_of_apt():
    with pytest.raises(SetupError, match="Unable to locate package essaim-no-such-package"):
        computer.need({"no-such-program": "essaim-no-such-package"})


def test_a_free_port_can_be_taken():
    with socket.socket() as server:
        server.bind(("127.0.0.1", computer.free_port()))


def test_a_port_is_given_once():
    """Who asks while the first has not begun to listen is given another one."""
    first, second = computer.free_port(), computer.free_port()
    program = (
        "from essaim_lab import computer\n"
        f"computer.secrets.choice = lambda _, given=iter([{first}, {second}, 9999]): next(given)\n"
        "print(computer.free_port())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"9999\n"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs")
def test_a_program_that_is_just_being_installed_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    found = threading.Event()

    def look() -> None:
        computer.need({"sh": "no-such-package"})
        found.set()

    with (tmp_path / "essaim-apt.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as somebody does who installs
        thread = threading.Thread(target=look)
        thread.start()
        assert not found.wait(0.2)
    thread.join()
    assert found.is_set()
