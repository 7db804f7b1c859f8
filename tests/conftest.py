"""What every folder of tests may use: `from databases import …`, `from workflows import …`."""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The tests are not packages: their helpers are found from here, as ruff's `src` setting says.
sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["databases", "brokers"]

# A busy machine may take its time over an example, whichever files of tests are collected.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

#: Folders whose files take longest: begun first, so that no worker is left alone with one of them.
LONG = ("endtoend", "kvm", "workflows", "images", "bench", "drivers", "remote", "agent", "gateway")


def pytest_configure():
    """Programs obey Ctrl-C and a hang-up, also in a suite that `nohup` or a script's `&` began."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    def turn(item) -> int:
        folder = item.path.parent.name
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=turn)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open():
    """Let what a file of tests leaves open be said there, and not in whichever test comes later."""
    yield
    gc.collect()
