"""A machine is judged by what was seen on it, and every way it can differ has its words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essaim.model.machines import Power
from essaim.plan.lock_node import Expected, SeenFile, altered_paths, applied, inside, standing
from plan.locks import FILE, IMAGE, NODE, OBSERVED, SEEN, SEEN_FILE

EXPECTED = Expected(keys=frozenset({"SHA256:ours"}))


def judged(seen=SEEN, *, node=NODE, image=IMAGE, expected=EXPECTED) -> list[str]:
    return [found.what for found in inside("lab/one", node, image, seen, expected)]


def stands(observed, *, image=IMAGE) -> list[str]:
    known = {"e" * 64: "image slurm"}
    return [found.what for found in standing("lab/one", NODE, image, observed, known)]


def test_a_machine_as_locked_has_nothing_against_it():
    assert judged() == []
    assert stands(OBSERVED) == []
    assert list(applied("lab/one", NODE, {"mark": "a:b:c:d"})) == []


@pytest.mark.parametrize(
    ("observed", "said"),
    [
        (None, "is not there"),
        (replace(OBSERVED, power=Power.OFF), "is off"),
        (replace(OBSERVED, address="10.9.0.9"), "was given address 10.9.0.9, not 10.9.0.10"),
        (
            replace(OBSERVED, image="e" * 64),
            "is made from another image: image slurm (eeeeeeeeeeee), not base (dddddddddddd)",
        ),
        (
            replace(OBSERVED, image="f" * 64),
            (
                "is made from another image: of another description (ffffffffffff), "
                "not base (dddddddddddd)"
            ),
        ),
        (
            replace(OBSERVED, detail={"content": "f" * 64}),
            "is made from another build of image base: ffffffffffff, not cccccccccccc",
        ),
    ],
)
def test_how_a_machine_stands(observed, said):
    assert stands(observed) == [said]


def test_a_driver_that_does_not_tell_the_content_is_believed():
    assert stands(replace(OBSERVED, detail={"path": "/x"})) == []
    assert stands(replace(OBSERVED, detail={"content": "c" * 64})) == []


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ({}, "role mark was never applied in full"),
        ({"mark": "x:b:c:d"}, "role mark was applied in another state: its files changed"),
        ({"mark": "a:b:c:d", "more": "a:b:c:d"}, "role more is not in the lock"),
    ],
)
def test_roles_as_they_were_applied(records, said):
    assert [found.what for found in applied("lab/one", NODE, records)] == [said]


def with_file(**changes: str):
    return replace(SEEN, files={"/etc/mark": replace(SEEN_FILE, **changes)})


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (replace(SEEN, hostname="other"), "calls itself other, not one"),
        (
            replace(SEEN, addresses=("10.9.0.99/24", "127.0.0.1/8")),
            "has not the address 10.9.0.10/24 but 10.9.0.99/24",
        ),
        (replace(SEEN, addresses=("127.0.0.1/8",)), "has not the address 10.9.0.10/24 but none"),
        (with_file(sha256="6"), "/etc/mark does not hold what role mark writes there"),
        (with_file(mode="600"), "/etc/mark has mode 600, not 644"),
        (with_file(owner="daemon"), "/etc/mark belongs to daemon, not root"),
        (with_file(group="adm"), "/etc/mark belongs to group adm, not root"),
        (
            replace(SEEN, files={"/etc/mark": SeenFile(kind="absent")}),
            "/etc/mark is gone; role mark puts it there",
        ),
        (replace(SEEN, files={}), "/etc/mark is gone; role mark puts it there"),
        (
            replace(SEEN, files={"/etc/mark": SeenFile(kind="link")}),
            "/etc/mark is a symbolic link now; role mark puts a file there",
        ),
        (
            replace(SEEN, files={"/etc/mark": SeenFile(kind="other")}),
            "/etc/mark is no file now; role mark puts a file there",
        ),
        (
            replace(SEEN, packages={**IMAGE.packages, "bash": "6"}),
            "has other versions: bash 6 (not 5.2)",
        ),
        (replace(SEEN, packages={"bash": "5.2"}), "lacks packages: openssh-server 1:9.2"),
        (
            replace(SEEN, packages={**IMAGE.packages, "nmap": "7"}),
            "has packages the lock does not: nmap 7",
        ),
        (replace(SEEN, packages=None), "keeps no list of its packages any more"),
        (
            replace(SEEN, keys=("SHA256:eve", "SHA256:ours")),
            "lets in a key that Essaim did not put there: SHA256:eve",
        ),
    ],
)
def test_what_differs_inside(seen, said):
    assert judged(seen) == [said]


def test_an_image_without_a_list_of_packages_is_not_judged_by_one():
    assert judged(image=replace(IMAGE, packages={})) == []
    assert judged(replace(SEEN, packages=None), image=replace(IMAGE, builder="tiny")) == []


def test_a_machine_that_cannot_tell_its_addresses_is_judged_by_its_name():
    assert judged(replace(SEEN, addresses=())) == []
    assert judged(replace(SEEN, addresses=(), hostname="x")) == ["calls itself x, not one"]


def test_what_the_lock_does_not_pin_is_held_to_what_is_rendered_now():
    live = replace(FILE, sha256="", rests_on=("needs.key",))
    node = replace(NODE, files={"/etc/mark": live})
    now = replace(EXPECTED, contents={"/etc/mark": "7"})
    assert judged(node=node, expected=now) == [
        "/etc/mark does not hold what role mark writes there"
    ]
    assert judged(with_file(sha256="7"), node=node, expected=now) == []
    assert judged(node=node) == [], "without anything to compare with, owner and mode still are"
    assert judged(with_file(mode="600"), node=node) == ["/etc/mark has mode 600, not 644"]


def test_the_group_may_be_said():
    node = replace(NODE, files={"/etc/mark": replace(FILE, group="adm")})
    assert judged(node=node) == ["/etc/mark belongs to group root, not adm"]
    assert judged(with_file(group="adm"), node=node) == []


class TestFilesOfPackages:
    IMAGE = replace(IMAGE, altered=("/var/cache/apt",))

    def test_what_is_changed_by_hand_is_named(self):
        seen = replace(SEEN, altered=frozenset({"/var/cache/apt", "/etc/b", "/etc/a"}))
        said = "has files that are not as their packages have them: /etc/a, /etc/b"
        assert judged(seen, image=self.IMAGE) == [said]

    def test_what_image_or_role_changed_is_not(self):
        seen = replace(SEEN, altered=frozenset({"/var/cache/apt", "/etc/mark"}))
        assert judged(seen, image=self.IMAGE) == []

    def test_where_nobody_can_tell_nothing_is_said(self):
        seen = replace(SEEN, altered=frozenset({"/etc/a"}))
        assert judged(seen, image=replace(IMAGE, altered=None)) == []
        assert judged(replace(SEEN, altered=None), image=self.IMAGE) == []

    def test_what_dpkg_prints(self):
        lines = [
            "??5??????   /usr/bin/tool",
            "??5?????? c /etc/a setting",
            "missing     /usr/sbin/gone",
            "missing   c /etc/gone",
            "missing     /usr/share/doc/tool/copyright",
            "??5??????   /usr/share/tool/data",
            "dpkg: warning: something else",
        ]
        assert list(altered_paths(lines)) == [
            "/usr/bin/tool",
            "/etc/a setting",
            "/usr/sbin/gone",
            "/etc/gone",
            "/usr/share/tool/data",
        ]


class TestPackagesOfRoles:
    WANTS = replace(EXPECTED, packages=frozenset({"nginx"}))

    def test_one_that_no_image_holds_must_be_there(self):
        assert judged(expected=self.WANTS) == ["lacks packages that its roles install: nginx"]

    def test_what_it_brings_along_cannot_be_foreseen(self):
        seen = replace(SEEN, packages={**IMAGE.packages, "nginx": "1", "nginx-common": "1"})
        assert judged(seen, expected=self.WANTS) == []

    def test_another_package_may_stand_in_for_it(self):
        seen = replace(
            SEEN,
            packages={**IMAGE.packages, "nginx-light": "1"},
            provides={"nginx-light": frozenset({"nginx"})},
        )
        assert judged(seen, expected=self.WANTS) == []

    def test_one_that_the_image_holds_leaves_nothing_open(self):
        wants = replace(EXPECTED, packages=frozenset({"bash", "shell"}))
        seen = replace(SEEN, provides={"bash": frozenset({"shell"})})
        assert judged(seen, expected=wants) == []
        more = replace(seen, packages={**IMAGE.packages, "nmap": "7"})
        assert judged(more, expected=wants) == ["has packages the lock does not: nmap 7"]
