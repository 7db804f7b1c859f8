"""Carrying out a plan before a person's eyes."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from essaim.cli import carrying
from essaim.model.plans import Plan
from essaim.usecases import stacks


def test_ctrl_c_in_the_moment_a_run_begins_stops_it_and_says_so(monkeypatch, capsys):
    """R-C2: it is in the journal by then, and nobody would be told."""
    interrupted = threading.Event()
    courier = SimpleNamespace(interrupt=interrupted.set)
    app = SimpleNamespace(broker="", courier=courier, watch=None)
    stored = SimpleNamespace(plan=Plan(stack="lab", changes=(), world="", wanted=""))

    def apply(_app, _stored) -> str:
        signal.raise_signal(signal.SIGINT)
        return "0f3a9c81"

    def follow(_app, run: str) -> str:
        assert interrupted.wait(60)
        return run

    monkeypatch.setattr(stacks, "apply", apply)
    monkeypatch.setattr(stacks, "follow", follow)
    try:
        run, _progress = carrying._apply(app, stored)
    except KeyboardInterrupt:
        pytest.fail("it ended without a word")
    assert run == "0f3a9c81"
    assert "what is under way is finished first" in capsys.readouterr().err
