"""The same commands with the journal in each database (R-C2, base of R-D3)."""

from __future__ import annotations

import dataclasses
import json


def test_a_stack_comes_up_is_changed_and_goes_with_every_database(root, empty_url):
    shared = dataclasses.replace(root, extra={**root.extra, "ESSAIM_DATABASE": empty_url})
    shared.types("up", "examples/bare", "nodes=2", within=600)
    assert "nothing to change" in shared.types("up", "examples/bare", "nodes=2")
    shared.types("up", "examples/bare", "nodes=3")
    answers = json.loads(shared.types("run", "bare", "--json", "--", "hostname"))
    assert {a["output"].strip() for a in answers} == {"nodes-1", "nodes-2", "nodes-3"}
    assert shared.types("runs").count("done") == 2
    shared.types("down", "bare", "--yes")
    assert json.loads(shared.types("status", "--json")) == []
