"""Whatever differs between two locks is said in words that name it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essaim.plan.lock_compare import differences, tool_notes
from plan.locks import FILE, IMAGE, NODE, lock


def words(**changes: object) -> list[str]:
    return [f"{found.at} {found.what}" for found in differences(lock(), lock(**changes))]


def test_a_lock_does_not_differ_from_itself():
    assert words() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": ()},  # the same can be said in other words
        {"tools": {"essaim": "9.9"}},
        {"may_differ": ()},
        {"images": {"base": replace(IMAGE, content="", packages={})}},  # not built here
        {"images": {"base": replace(IMAGE, tools={"mmdebstrap": "2"})}},
    ],
)
def test_what_makes_no_difference_is_none(changes):
    assert words(**changes) == []


def test_tools_are_worth_a_note():
    noted = tool_notes(lock(), lock(tools={"essaim": "9.9", "new": "1"}))
    assert noted == ["essaim 9.9 here, 0.2.0 when the lock was made"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"files": {**lock().files, "roles/mark/role.yaml": "x"}},
            "roles/mark/role.yaml has changed since the lock",
        ),
        ({"files": {"stack.yaml": "1" * 64}}, "roles/mark/role.yaml is gone, or no longer used"),
        (
            {"files": {**lock().files, "essaim.yaml": "x"}},
            "essaim.yaml was not there, or not used, when the lock was made",
        ),
        ({"configuration": {**lock().configuration, "nodes": 2}}, "nodes is 2; the lock has 1"),
        (
            {"configuration": {"nodes": 1}},
            "vars.mark.token.!secret is no longer set; the lock has 'token'",
        ),
        (
            {"configuration": {**lock().configuration, "more": {"x": "y"}}},
            "more.x is 'y'; the lock does not have it",
        ),
        (
            {"images": {"base": replace(IMAGE, description="e" * 64)}},
            "image base is described otherwise: eeeeeeeeeeee, not dddddddddddd",
        ),
        (
            {"images": {"base": replace(IMAGE, form="disk")}},
            "image base is a disk made by debian, not a rootfs made by debian",
        ),
        ({"images": {}}, "image base is no longer used"),
        ({"images": {"base": IMAGE, "more": IMAGE}}, "image more is not in the lock"),
        (
            {"nodes": {"one": NODE, "two": replace(NODE, hostname="two")}},
            "lab/two is not in the lock",
        ),
        ({"nodes": {}}, "lab/one is in the lock, but not described"),
        (
            {"nodes": {"one": replace(NODE, address="10.9.0.11/24")}},
            "lab/one would be one at 10.9.0.11/24, not one at 10.9.0.10/24",
        ),
        (
            {"nodes": {"one": replace(NODE, seed="x")}},
            "lab/one would be told other things at first boot",
        ),
        (
            {"nodes": {"one": replace(NODE, image="other")}},
            "lab/one would be made from image other, not base",
        ),
        (
            {"nodes": {"one": replace(NODE, size={**NODE.size, "memory": 512})}},
            "lab/one would have 1 cores, 512 MiB and 0 GiB, not 1 cores, 256 MiB and 0 GiB",
        ),
        ({"nodes": {"one": replace(NODE, roles=())}}, "lab/one would carry no role, not mark"),
        (
            {"nodes": {"one": replace(NODE, digests={"mark": "a:x:c:y"})}},
            "lab/one role mark would be applied otherwise: its variables changed, members changed",
        ),
        (
            {"nodes": {"one": replace(NODE, files={"/etc/mark": replace(FILE, sha256="6")})}},
            "lab/one /etc/mark would be written otherwise, though role mark is the same",
        ),
        (
            {"wanted": "x"},
            (
                "stack lab is not what was locked, though no file or value differs: "
                "other versions read it"
            ),
        ),
    ],
)
def test_each_difference_is_named(changes, said):
    assert words(**changes) == [said]


def test_an_image_built_to_something_else_says_what():
    newer = replace(IMAGE, content="f" * 64, packages={"bash": "5.3", "vim": "9"})
    assert words(images={"base": newer}) == [
        "image base was built to other content: ffffffffffff, not cccccccccccc",
        "image base has other versions: bash 5.3 (not 5.2)",
        "image base lacks packages: openssh-server 1:9.2",
        "image base has packages the lock does not: vim 9",
    ]


def test_an_image_that_was_only_built_anew_says_so():
    anew = replace(IMAGE, content="f" * 64)
    assert "same packages and inputs" in words(images={"base": anew})[1]
    pinned = replace(IMAGE, content="f" * 64, inputs={"nar_hash": "sha256-x"})
    assert words(images={"base": pinned})[1] == "image base rests on another nar_hash"


def test_what_holds_for_many_machines_is_said_once():
    many = {f"n-{k}": replace(NODE, hostname=f"n-{k}") for k in range(8)}
    changed = {name: replace(node, digests={"mark": "x:b:c:d"}) for name, node in many.items()}
    (found,) = differences(lock(nodes=many), lock(nodes=changed))
    assert found.at == "lab/n-0, n-1, n-2, n-3, n-4 and 3 more"
    assert found.what == "role mark would be applied otherwise: its files changed"


def test_a_long_list_of_packages_is_cut():
    many = {f"p{k}": "1" for k in range(9)}
    newer = replace(IMAGE, content="f" * 64, packages={**IMAGE.packages, **many})
    said = words(images={"base": newer})[1]
    assert said.endswith("p0 1, p1 1, p2 1, p3 1, p4 1 and 4 more")
