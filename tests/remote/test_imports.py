"""Those who talk to no machine do not wait for the libraries that could."""

from __future__ import annotations

import subprocess
import sys

HEAVY = "asyncssh jinja2 cryptography yaml ansible"
MODULES = "ssh roles keyring ansible pool"


def test_only_the_pool_loads_asyncssh():
    program = f"""
import importlib, sys
for name in {MODULES.split()!r}:
    importlib.import_module("essaim.remote." + name)
    print(name, *sorted(set({HEAVY.split()!r}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert loaded.pop("pool") == "asyncssh cryptography"
    assert set(loaded.values()) == {""}
