"""Programs and ports of the computer at hand."""

from __future__ import annotations

import os
import socket
import sys

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
