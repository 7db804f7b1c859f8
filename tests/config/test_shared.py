"""Folders in common and internet access, as a stack describes them."""

from __future__ import annotations

import pytest

from essaim.config.serial import fingerprint, stack_from_json, stack_to_json

LIBVIRT = "driver: libvirt\nuri: qemu:///session\n"


def test_every_machine_of_a_sandbox_stack_has_them(lab):
    stack = lab.compose("+shared=[/home,/srv/data]", "+network.internet=true").stack
    assert {machine.shared for machine in stack.machines} == {("/home", "/srv/data")}
    assert stack.network.internet
    assert stack_from_json(stack_to_json(stack)) == stack
    assert stack.notes == ()


def test_a_stack_without_them_is_what_it_was(lab):
    plain = lab.compose().stack
    assert plain.machines[0].shared == ()
    assert not plain.network.internet
    both = {fingerprint(plain), fingerprint(lab.compose("+network.internet=true").stack)}
    both.add(fingerprint(lab.compose("+shared=[/home]").stack))
    assert len(both) == 3
    assert fingerprint(lab.compose("+shared=[]", "+network.internet=false").stack) in both


def test_a_site_that_cannot_share_says_so_and_comes_up(lab):
    lab.write("site/server.yaml", LIBVIRT)
    stack = lab.compose("+shared=[/home]", "+network.internet=true", "site=server").stack
    assert {machine.shared for machine in stack.machines} == {()}
    assert stack.notes == ("site server shares no folders: every machine has /home for itself",)
    assert stack.network.internet, "its machines have no other way out either"


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        ("[home]", "cannot have 'home'"),
        ("[/]", "cannot have '/'"),
        ("[/home/../etc]", "cannot have '/home/../etc'"),
        ("[/etc]", "every machine needs that for itself"),
        ("[/run/x]", "every machine needs that for itself"),
        ("[/home,/home/a]", "a folder is shared with all that is in it"),
        ("/home", "must be a list of folders"),
        ("[7]", "cannot have 7"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_words(lab, folders, words):
    (problem,) = lab.problems(f"+shared={folders}")
    assert words in problem
