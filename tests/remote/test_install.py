"""Files and packages of a role, on a real machine (R-C2: re-runnable at will)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from essaim.model.errors import RejectedError
from essaim.model.roles import RoleFile
from essaim.remote import roles
from essaim.remote.roles import Given


@pytest.fixture
def place(box, tmp_path):
    """A directory of the machine no other test uses."""
    path = f"/srv/{tmp_path.name}"
    yield path
    box.enter("rm", "-rf", path)


@pytest.fixture
def put(shared_remote, box, facts, logs, make_role):
    """Put a role made of these parts on the machine; gives the paths it changed."""

    def put(given=facts, **parts):
        role = make_role(**parts)
        return roles.put(shared_remote, box.target, role, given, logs.record)

    return put


def test_files_are_written_once_and_then_left_alone(put, box, facts, logs, place):
    role = {
        "sources": {"a.j2": "{{ machine.hostname }} {{ needs.token }}\n", "b": "plain {{ x }}\n"},
        "files": (
            RoleFile(to=f"{place}/deep/a", template="a.j2", owner="student", mode=0o400),
            RoleFile(to=f"{place}/b", copy="b", mode=0o755, group="adm"),
            RoleFile(to=f"{place}/c d$e'f", content="{{ network.cidr }}"),
        ),
    }
    facts = replace(facts, needs={"token": Given("sesame", secret=True)})
    changed = put(facts, **role)
    assert changed == [file.to for file in role["files"]]
    stat = box.enter("stat", "-c", "%a %U %G", *changed).stdout.splitlines()
    assert stat == ["400 student student", "755 root adm", "644 root root"]
    assert [box.path(path).read_text() for path in changed] == [
        "box-1 sesame\n",
        "plain {{ x }}\n",
        "10.77.0.0/24",
    ]
    inodes = [box.path(path).stat().st_ino for path in changed]
    assert put(facts, **role) == []
    assert [box.path(path).stat().st_ino for path in changed] == inodes
    assert len(logs.kept) == 1, "the second time there was nothing to tell"
    assert logs.kept[0]["command"] == "worker: files"
    assert logs.kept[0]["machine"] == "lab/box-1"


@pytest.mark.parametrize("spoil", ["echo >>{}", "chmod 600 {}", "chown student {}", "rm {}"])
def test_what_was_changed_by_hand_is_put_right(put, box, place, spoil):
    files = (RoleFile(to=f"{place}/f", content="x\n"),)
    put(files=files)
    box.enter("sh", "-c", spoil.format(f"{place}/f"))
    assert put(files=files) == [f"{place}/f"]
    assert box.enter("stat", "-c", "%a %U %G %s", f"{place}/f").stdout == "644 root root 2\n"


def test_a_link_is_replaced_not_followed(put, box, place):
    box.enter("sh", "-c", f"mkdir -p {place}/dir; echo kept >{place}/other")
    box.enter("ln", "-s", f"{place}/other", f"{place}/f")
    box.enter("ln", "-s", f"{place}/dir", f"{place}/g")
    assert len(put(files=[RoleFile(to=f"{place}/{name}", content="kept\n") for name in "fg"])) == 2
    assert not box.path(f"{place}/f").is_symlink()
    assert box.path(f"{place}/g").is_file()
    assert box.path(f"{place}/other").read_text() == "kept\n"


def test_a_reader_never_sees_half_a_file(put, box, place):
    bodies = ["a" * 2_000_000, "b" * 1_000_000]
    versions = [(RoleFile(to=f"{place}/f", content=body),) for body in bodies]
    put(files=versions[0])
    seen, over = set(), threading.Event()

    def read():
        while not over.is_set():
            seen.add(box.path(f"{place}/f").read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(1, 9):
        put(files=versions[turn % 2])
    over.set()
    reader.join()
    assert seen <= set(bodies)


@pytest.mark.parametrize(
    "case",
    [
        (RoleFile(to="{}/f", content="x", owner="nobody-here"), "there is no user nobody-here"),
        (RoleFile(to="{}/f", content="x", group="nogroup-here"), "could not be written"),
        (RoleFile(to="{}", content="x"), "is a directory"),
        (RoleFile(to="{}/f/g", content="x"), "no directory for it"),
    ],
)
def test_a_file_that_cannot_be_put_there_says_why(put, box, logs, place, case):
    file, message = case
    box.enter("mkdir", "-p", place)
    box.enter("sh", "-c", f"echo old >{place}/f")
    with pytest.raises(RejectedError, match=message) as caught:
        put(files=(replace(file, to=file.to.format(place)),))
    assert caught.value.what.startswith("lab/box-1: role worker: ")
    assert caught.value.hint == "essaim logs lab/box-1"
    assert logs.kept[-1]["exit_code"] == 1
    assert box.enter("ls", "-A", place).stdout == "f\n", "nothing is left behind"
    assert box.path(f"{place}/f").read_text() == "old\n"
    assert not [path for path in box.path("/var/lib/essaim").iterdir() if ".put" in path.name]


@pytest.mark.parametrize(
    "file",
    [
        RoleFile(to="relative", content=""),
        RoleFile(to="/a\nb", content=""),
        RoleFile(to="/a/", content=""),
        RoleFile(to="/a", content="", owner="root; reboot"),
        RoleFile(to="/a", copy="../../secret"),
        RoleFile(to="/a", copy="absent"),
    ],
)
def test_what_cannot_be_meant_is_refused(put, file):
    with pytest.raises(RejectedError):
        put(files=(file,))


def test_installed_packages_are_left_alone(put, logs):
    assert put(packages=("procps", "openssh-server")) == []
    assert logs.kept == []


def test_what_an_image_provides_in_place_of_a_package_counts(put, box, logs):  # R-A4
    box.enter("sh", "-c", "mkdir -p /etc/essaim && echo hello >/etc/essaim/provides")
    try:
        assert put(packages=("procps", "hello")) == []
    finally:
        box.enter("rm", "-r", "/etc/essaim")
    assert logs.kept == []


def test_a_missing_package_is_asked_of_apt_and_its_absence_explained(put, box, logs):
    # As on a machine without a network: apt has nobody to ask.
    box.enter("sh", "-c", "mkdir -p /srv/apt && mv /etc/apt/sources.list* /srv/apt")
    try:
        with pytest.raises(RejectedError, match=r"hello could not be installed: .*hello") as caught:
            put(packages=("procps", "hello"))
    finally:
        box.enter("sh", "-c", "mv /srv/apt/* /etc/apt/")
    assert "image" in caught.value.hint
    assert "network" in caught.value.hint
    assert logs.kept[0]["exit_code"] != 0


def test_a_package_is_never_an_option(put):
    with pytest.raises(RejectedError, match="not the name of a package"):
        put(packages=("-o=x",))
