"""`essaim lab`: what a person reads who starts a simulator twice."""

from __future__ import annotations

import socket

import pytest

from essaim.cli.lab import _check_port
from essaim.model.errors import SetupError


def test_a_port_that_is_taken_is_told_before_the_other_ones_secrets_are_lost():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=f"127.0.0.1:{port} cannot be listened on") as caught:
            _check_port(port)
        assert "--port 0" in caught.value.hint
    _check_port(port)
    _check_port(0)
