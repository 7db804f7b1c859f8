"""Files travel to a real OpenSSH server and back."""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path

import pytest

from essaim.model.errors import RejectedError, TransientError
from essaim.remote import transfer
from essaim.remote.files import LocalFiles
from essaim.remote.sftp import SftpFiles
from essaim.remote.transfer import AGAIN, PART, Copier, Location, expand, part_path

HERE = LocalFiles()
NAMES = [
    "plain",
    "with blank",
    "quo'te\"s",
    "-rf",
    "été ☃",
    "new\nline",
    "back\\slash",
    "$(touch x)",
    "[a]*?",
    os.fsdecode(b"latin-\xe9"),
]


class Seen:
    """Keeps what is reported."""

    def __init__(self, after: int = 1 << 62, act=None):
        self.errors = []
        self.begun = []
        self.count = 0
        self._after = after
        self._act = act

    def begin(self, source, size, done):
        self.begun.append((source.path, size, done))

    def advance(self, count):
        self.count += count
        if self.count >= self._after:
            self._after = 1 << 62
            self._act()

    def failed(self, source, target, error):
        self.errors.append((error.errno, error.filename))


@pytest.fixture
def far(boxes):
    with SftpFiles(boxes[1].ssh(), name="lab/box-2") as files:
        yield files


@pytest.fixture
def place(boxes, request):
    """A directory of its own on the machine."""
    path = f"/root/{request.node.name.replace('/', '_')[:60]}"
    assert boxes[1].enter("mkdir", path).returncode == 0
    return path


def here(path):
    return Location(HERE, str(path))


def copy(sources, destination, **options):
    seen = Seen()
    outcome = Copier(seen, **options).copy(sources, destination)
    return outcome, seen.errors


def snapshot(path):
    """Everything about a tree that a copy keeps."""
    found = {}
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            full = os.path.join(folder, name)
            info = os.lstat(full)
            kind = stat.S_IFMT(info.st_mode)
            if stat.S_ISLNK(info.st_mode):
                body, mode, at = os.readlink(full), 0, 0
            else:
                body = b"" if stat.S_ISDIR(info.st_mode) else Path(full).read_bytes()
                mode, at = stat.S_IMODE(info.st_mode), int(info.st_mtime)
            found[os.path.relpath(full, path)] = (kind, mode, at, body)
    return found


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir()
    for number, name in enumerate(NAMES):
        path = top / "deep" / name
        path.write_bytes(name.encode(errors="surrogateescape") * number)
        path.chmod(0o640 if number % 2 else 0o755)
        os.utime(path, (1_700_000_000, 1_600_000_000 + number))
    (top / "deep" / "er" / "big").write_bytes(os.urandom(5_000_001))
    (top / "link").symlink_to("deep/plain")
    (top / "dangling").symlink_to("no where")
    (top / "deep").chmod(0o750)
    os.utime(top / "deep", (1, 1_500_000_000))
    return top


def test_a_tree_goes_there_and_back_as_it_was(far, place, tree, tmp_path):
    outcome, errors = copy([here(tree)], Location(far, f"{place}/new"))
    assert not errors
    assert outcome.copied == len(snapshot(tree)) + 1
    outcome, errors = copy([Location(far, f"{place}/new")], here(tmp_path / "back"))
    assert not errors
    assert snapshot(tmp_path / "back") == snapshot(tree)
    assert outcome.bytes > 5_000_000


def test_into_a_directory_that_is_there_and_under_a_new_name(far, place, tmp_path):
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    both = [here(tmp_path / "one"), here(tmp_path / "two")]
    assert copy(both, Location(far, place))[1] == []
    assert copy(both[:1], Location(far, f"{place}/renamed"))[1] == []
    assert {name for name, _ in far.entries(place)} == {"one", "two", "renamed"}
    assert copy(both, Location(far, f"{place}/none"))[1] == [(errno.ENOENT, f"{place}/none")] * 2
    assert copy(both, Location(far, f"{place}/one"))[1] == [(errno.ENOTDIR, f"{place}/one")] * 2
    # A relative path begins at the home.
    assert (
        copy([Location(far, f"{place.removeprefix('/root/')}/one")], here(tmp_path / "x"))[1] == []
    )
    assert (tmp_path / "x").read_text() == "1"


def test_patterns_name_files_of_the_machine(far, place, tmp_path):
    for name in ("a.csv", "b.csv", ".hidden.csv", "c.txt", "[x].csv"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.csv").write_text("d")
    assert copy([here(tmp_path)], Location(far, f"{place}/t"))[1] == []

    def found(pattern):
        return [each.path.removeprefix(f"{place}/t/") for each in expand(Location(far, pattern))]

    assert found(f"{place}/t/*.csv") == ["[x].csv", "a.csv", "b.csv"]
    assert found(f"{place}/t/[ab].csv") == ["a.csv", "b.csv"]
    assert found(f"{place}/t/*/?.csv") == ["sub/d.csv"]
    assert found(f"{place}/t/[x].csv") == ["[x].csv"]
    assert found(f"{place}/t/*.zip") == ["*.zip"]
    assert found(f"{place.removeprefix('/root/')}/t/*.txt")[0].endswith("/t/c.txt")


def test_a_large_file_goes_on_where_it_stopped(boxes, place, tmp_path):
    body = os.urandom(20_000_000)
    (tmp_path / "big").write_bytes(body)
    source = here(tmp_path / "big")
    final = boxes[1].path(f"{place}/big")
    with SftpFiles(boxes[1].ssh(), name="box") as far:
        process = far._connection._process
        seen = Seen(10_000_000, lambda: os.kill(process.pid, signal.SIGKILL))
        with pytest.raises(TransientError):
            Copier(seen).copy([source], Location(far, place))
    assert not final.exists()
    (part,) = [each for each in os.listdir(final.parent) if each.endswith(PART)]
    there = (final.parent / part).stat().st_size
    assert there > AGAIN

    seen = Seen()
    with SftpFiles(boxes[1].ssh(), name="box") as far:
        Copier(seen).copy([source], Location(far, place))
    ((path, size, begun),) = seen.begun
    assert (path, size) == (source.path, len(body))
    # The far side may have written what was under way after its client was killed.
    assert there - AGAIN <= begun < len(body)
    assert final.read_bytes() == body
    assert os.listdir(final.parent) == ["big"]

    # Back again, stopped halfway by Ctrl-C.
    def interrupt():
        raise KeyboardInterrupt

    with SftpFiles(boxes[1].ssh(), name="box") as far, pytest.raises(KeyboardInterrupt):
        Copier(Seen(10_000_000, interrupt)).copy(
            [Location(far, f"{place}/big")], here(tmp_path / "got")
        )
    assert not (tmp_path / "got").exists()
    seen = Seen()
    with SftpFiles(boxes[1].ssh(), name="box") as far:
        Copier(seen).copy([Location(far, f"{place}/big")], here(tmp_path / "got"))
    assert seen.begun[0][2] > 0
    assert (tmp_path / "got").read_bytes() == body


def test_what_is_left_of_another_version_is_not_continued(far, place, tmp_path):
    source = tmp_path / "big"
    source.write_bytes(b"old" * 2_000_000)
    old = part_path(f"{place}/big", HERE.stat(str(source)))
    with far.write(old, 0) as writer:
        writer.write(b"old" * 1_000_000)
    source.write_bytes(b"new" * 2_000_000)
    os.utime(source, (5, 5))
    outcome, errors = copy([here(source)], Location(far, place))
    assert not errors
    assert outcome.bytes == 6_000_000
    assert [name for name, _ in far.entries(place)] == ["big"], "the old part is removed"
    assert b"".join(far.read(f"{place}/big", 0)) == b"new" * 2_000_000


def test_a_part_that_is_somebody_elses_is_left_alone(boxes, far, place, tmp_path):
    (tmp_path / "x").write_text("mine")
    part = part_path(f"{place}/x", HERE.stat(str(tmp_path / "x")))
    boxes[1].enter("touch", part)
    boxes[1].enter("chown", "student", part)
    assert copy([here(tmp_path / "x")], Location(far, place))[1] == [(errno.EEXIST, part)]
    boxes[1].enter("rm", part)
    boxes[1].enter("ln", "-s", "/etc/passwd", part)
    assert copy([here(tmp_path / "x")], Location(far, place))[1] == [(errno.EEXIST, part)]


def test_with_update_what_is_there_is_skipped(far, place, tree):
    copy([here(tree)], Location(far, f"{place}/t"))
    (tree / "deep" / "plain").write_text("changed")
    outcome, errors = copy([here(tree)], Location(far, f"{place}/u"), update=True)
    assert not errors
    assert outcome.skipped == 0
    outcome, errors = copy([Location(HERE, f"{tree}/.")], Location(far, f"{place}/t"), update=True)
    assert not errors
    assert outcome.bytes == len("changed")
    assert outcome.skipped == len(NAMES) + 2  # the big one and both links, less the changed one


def test_errors_say_what_is_wrong_and_the_rest_goes_on(boxes, place, tmp_path):
    (tmp_path / "good").write_text("good")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "dir" / "pipe")
    (tmp_path / "dir" / "fine").write_text("fine")
    with SftpFiles(boxes[1].ssh("student"), name="box") as far:

        def errors(source, target):
            return [number for number, _ in copy([source], Location(far, target))[1]]

        good = here(tmp_path / "good")
        assert errors(here(tmp_path / "none"), "x") == [errno.ENOENT]
        assert errors(good, "/etc/x") == [errno.EACCES]
        assert errors(good, "no/where") == [errno.ENOENT]
        assert errors(good, "/etc/passwd/x") == [errno.ENOTDIR]
        assert errors(Location(far, "/etc/shadow"), "copy") == [errno.EACCES]
        assert errors(good, "/dev/null") == [errno.EINVAL]
        assert errors(here(tmp_path / "dir"), "dir") == [errno.EINVAL]
        assert [name for name, _ in far.entries("dir")] == ["fine"]
        assert errors(Location(far, "dir"), "dir/inside") == [errno.EINVAL]
        assert errors(here(tmp_path / "dir"), ".profile") == [errno.ENOTDIR]
        assert errors(here(tmp_path / "dir" / "fine"), "dir/fine") == []


def test_a_full_disk_is_said_and_leaves_nothing(boxes, place, tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(3_000_000))
    boxes[1].enter("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place)
    try:
        with SftpFiles(boxes[1].ssh(), name="box") as far:
            _, errors = copy([here(tmp_path / "big")], Location(far, place))
            assert [number for number, _ in errors] == [errno.ENOSPC]
            assert far.entries(place) == []
    finally:
        boxes[1].enter("umount", place)


def test_a_file_that_changes_meanwhile_is_not_passed_off_as_copied(far, place, tmp_path):
    source = tmp_path / "log"
    source.write_bytes(bytes(3_000_000))

    def grow():
        with source.open("ab") as file:
            file.write(b"more")

    seen = Seen(1, grow)
    Copier(seen).copy([here(source)], Location(far, place))
    assert [number for number, _ in seen.errors] == [errno.EAGAIN]
    assert far.entries(place) == []


def test_a_machine_cannot_make_us_write_elsewhere(boxes, far, place, tmp_path):
    """What was a link last time is a directory now: nothing is written behind the link."""
    (tmp_path / "secret").mkdir()
    boxes[1].enter("sh", "-c", f"mkdir {place}/t; ln -s {tmp_path}/secret {place}/t/d")
    assert copy([Location(far, f"{place}/t")], here(tmp_path / "t"))[1] == []
    boxes[1].enter("sh", "-c", f"cd {place}/t; rm d; mkdir d; echo bad >d/bad")
    _, errors = copy([Location(far, f"{place}/t")], here(tmp_path / "got"))
    assert not errors
    _, errors = copy([Location(far, f"{place}/t/.")], here(tmp_path / "t"))
    assert errors == [(errno.ENOTDIR, f"{tmp_path}/t/d")]
    assert not os.listdir(tmp_path / "secret")


def test_a_machine_without_sftp_or_with_a_wrong_key_says_so(boxes):
    with pytest.raises(TransientError, match="Permission denied"):
        SftpFiles(boxes[1].ssh("nobody"), name="box")
    box = boxes[1]
    box.stop_sshd()
    box.start_sshd(subsystem="other")
    try:
        with pytest.raises(RejectedError, match="no SFTP server"):
            SftpFiles(box.ssh(), name="box")
    finally:
        box.stop_sshd()
        box.start_sshd()


def test_long_names_have_room_for_a_part():
    info = HERE.stat("/")
    assert len(os.path.basename(part_path("/x/" + "é" * 120, info)).encode()) < 255
    assert transfer.part_path("/x/y", info).startswith("/x/.y.")
