"""A lock is the same text for the same thing, and what cannot be one is refused with its place."""

from __future__ import annotations

import json

import pytest

from essaim.model.errors import InvalidError
from essaim.plan.lock import from_text, seed_digest, to_text
from plan.locks import lock


def test_a_lock_is_read_back_as_it_was():
    assert from_text(to_text(lock()), "essaim.lock") == lock()


def test_the_order_in_which_things_were_found_leaves_no_trace():
    files = lock().files
    turned = dict(reversed(files.items()))
    assert list(turned) != list(files)
    assert to_text(lock(files=turned)) == to_text(lock())


def test_one_change_is_one_line_of_a_diff():
    before = to_text(lock()).splitlines()
    after = to_text(lock(files={**lock().files, "stack.yaml": "9" * 64})).splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_the_text_ends_as_a_line_does_and_is_json():
    text = to_text(lock())
    assert text.endswith("}\n")
    assert json.loads(text)["version"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\n<<<<<<< ours\n}", "lab/essaim.lock:2: not a lock"),
        ("[]", "version None"),
        ('{"version": 99}', "version 99, not 1"),
        ('{"version": 1, "stack": "lab"}', "is missing or of another kind"),
        ("", "lab/essaim.lock:1: not a lock"),
    ],
)
def test_what_is_no_lock_is_refused_with_its_place(text, said):
    with pytest.raises(InvalidError) as refused:
        from_text(text, "lab/essaim.lock")
    assert said in refused.value.what
    assert "essaim lock STACK" in refused.value.what


def test_an_unknown_key_is_refused():
    body = {**json.loads(to_text(lock())), "surprise": 1}
    with pytest.raises(InvalidError, match="surprise"):
        from_text(json.dumps(body), "essaim.lock")


def test_a_seed_depends_on_name_and_address_alone():
    assert seed_digest("one", "10.9.0.10/24") != seed_digest("one", "10.9.0.10/16")
    assert seed_digest("one", "10.9.0.10/24") != seed_digest("two", "10.9.0.10/24")
