"""A stack as JSON and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from essaim.config.serial import fingerprint, stack_from_json, stack_to_json


def through(stack):
    return stack_from_json(json.loads(json.dumps(stack_to_json(stack))))


def test_nothing_is_lost(lab):  # R-A6
    stack = lab.compose(
        "nodes=2", "+vars.head.partition=fast", "+site.deep={a: [1, {b: null}]}"
    ).stack
    again = through(stack)
    assert again == stack
    assert again.roles["worker"].path == lab.root / "roles/worker"
    assert isinstance(again.roles["worker"].files, tuple)
    assert fingerprint(again) == fingerprint(stack)


def test_the_fingerprint_is_of_what_is_wanted(lab):
    stack = lab.compose().stack
    roles = {name: replace(role, path=Path("/elsewhere")) for name, role in stack.roles.items()}
    moved = replace(stack, source="elsewhere", overrides=("nodes=4",), roles=roles)
    assert fingerprint(moved) == fingerprint(stack)
    assert fingerprint(lab.compose("nodes=5").stack) != fingerprint(stack)
    lab.write("roles/worker/token.j2", "changed\n")
    assert fingerprint(lab.compose().stack) != fingerprint(stack)
