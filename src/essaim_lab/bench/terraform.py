"""Terraform as a peer of planning: as many resources of its built-in kind, no provider."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from essaim_lab.bench.rows import Peer
from essaim_lab.bench.timing import timed

NAME = "terraform plan"
_PATIENCE = 300.0

_MAIN = """\
resource "terraform_data" "machine" {
  count = %d
  input = {
    name    = "nodes-${count.index + 1}"
    address = cidrhost("10.64.0.0/16", count.index + 2)
    image   = "base"
    cores   = 1
    memory  = 256
  }
}
"""


def plan(count: int) -> Peer:
    """Plan that many new resources; stops looking after five minutes."""
    if shutil.which("terraform") is None:
        return Peer(name=NAME, note="not here")
    environ = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    with tempfile.TemporaryDirectory(prefix="essaim-terraform-") as name:
        here = Path(name)
        (here / "main.tf").write_text(_MAIN % count)
        init = timed(["terraform", "init", "-no-color"], environ=environ, cwd=here, within=60)
        if init.code != 0:
            return Peer(name=NAME, note="init failed", command=init.command)
        command = ["terraform", "plan", "-no-color", "-input=false", "-out=plan"]
        done = timed(command, environ=environ, cwd=here, within=_PATIENCE)
    if done.code != 0 and not done.stopped:
        return Peer(name=NAME, note="plan failed", command=done.command)
    return Peer(name=NAME, value=done.wall, command=done.command, stopped=done.stopped)
