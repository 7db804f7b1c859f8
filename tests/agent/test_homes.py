"""Homes in layers: whatever happens between saves, the last one is what is restored.  R-D7."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import shutil
import stat
import tarfile
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essaim.agent.common import Trouble
from essaim.agent.homes import COARSE, DEEPEST, LAYER, Outlet, pack, walk, within
from essaim.agent.restoring import restore_layers

REG, SYM, LNK = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
PLACES = ["a", "b", "d", "d/a", "d/e", "d/e/a", "f", "f/d", "f/d/x", "n\nl\udcff", ".ssh"]


def save(home, since=0, most=1 << 30):
    body = io.BytesIO()
    pack(str(home), most, Outlet(body, text=False), since)
    return body.getvalue()


def about(layer):
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        first = archive.next()
        assert first.name == LAYER
        return json.loads(archive.extractfile(first).read())


def members(layer):
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        return set(archive.getnames()) - {LAYER}


def restore(home, *layers):
    return restore_layers(io.BytesIO(b"".join(layers)), [len(one) for one in layers], str(home))


def tree(home):
    """All there is: kind, mode, time, content, and which names are one file."""
    found, first = {}, {}
    for path, folders, files in os.walk(home):
        folders.sort()
        for name in sorted((*folders, *files)):
            whole = os.path.join(path, name)
            seen = os.lstat(whole)
            if stat.S_ISREG(seen.st_mode):
                with open(whole, "rb") as file:
                    what = file.read()
            else:
                what = os.readlink(whole) if stat.S_ISLNK(seen.st_mode) else b""
            inside = os.path.relpath(whole, home)
            one = first.setdefault(seen.st_ino, inside) if stat.S_ISREG(seen.st_mode) else inside
            found[inside] = (oct(seen.st_mode), seen.st_mtime_ns, what, one)
    return found


@contextmanager
def two_homes():
    place = Path(tempfile.mkdtemp(prefix="essaim-homes-"))
    try:
        for name in ("old", "new"):
            (place / name).mkdir()
        yield place / "old", place / "new"
    finally:
        for path, folders, _ in os.walk(place):
            for inside in (os.path.join(path, name) for name in folders):
                if not os.path.islink(inside):
                    os.chmod(inside, 0o700)
        shutil.rmtree(place)


def change(home, what, where, other, number):
    """Do what people do to files; what cannot be done there is not done."""
    path, second = os.path.join(home, where), os.path.join(home, other)
    with suppress(OSError, shutil.Error):
        {
            "write": lambda: write(path, b"%d" % number * number),
            "folder": lambda: os.makedirs(path, exist_ok=True),
            "remove": lambda: (shutil.rmtree if os.path.isdir(path) else os.unlink)(path),
            "move": lambda: os.rename(path, second),
            "link": lambda: os.link(path, second, follow_symlinks=False),
            "symlink": lambda: os.symlink(f"target{number}", path),
            "mode": lambda: os.path.islink(path) or os.chmod(path, readable(path) | number & 0o277),
            "time": lambda: os.utime(path, ns=(number, number * 10**9 + 7), follow_symlinks=False),
        }[what]()


def readable(path):
    return 0o500 if os.path.isdir(path) else 0o400


def write(path, body):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(body)


CHANGES = st.tuples(
    st.sampled_from(
        ["write", "folder", "remove", "move", "move", "link", "symlink", "mode", "time"]
    ),
    st.sampled_from(PLACES),
    st.sampled_from(PLACES),
    st.integers(1, 500),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(CHANGES, max_size=8), min_size=1, max_size=5))
def test_layers_give_the_home_as_it_was_saved_last(rounds):
    with two_homes() as (old, new):
        (new / "skeleton" / "deep").mkdir(parents=True)
        (new / "skeleton").chmod(0o500)
        (new / ".profile").write_text("of a new account")
        layers, since = [], 0
        for changes in rounds:
            for one in changes:
                change(old, *one)
            layers.append(save(old, since))
            since = about(layers[-1])["at"]
        restore(new, *layers)
        assert tree(new) == tree(old)
        # Once more over itself, as a repeated step does.
        restore(new, *layers)
        assert tree(new) == tree(old)
        # And the whole at once is the same.
        restore(new, save(old))
        assert tree(new) == tree(old)


def settle(home):
    """Wait until the clock of files has gone on, so that what comes now is later than before."""
    probe = home.parent / "probe"
    probe.write_text("x")
    made = probe.stat().st_ctime_ns // 1_000_000
    while time.clock_gettime(COARSE) * 1000 <= made + 1:
        time.sleep(0.001)


def test_a_later_layer_has_only_what_changed(tmp_path):
    home = tmp_path / "home"
    (home / "d").mkdir(parents=True)
    for name in ("kept", "gone", "d/x"):
        (home / name).write_text(name)
    first = save(home)
    settle(home)
    first = save(home)
    settle(home)
    (home / "gone").unlink()
    (home / "fresh").write_text("fresh")
    second = save(home, about(first)["at"])
    assert members(first) == {"kept", "gone", "d", "d/x"}
    assert members(second) == {"fresh", "d"}
    assert set(about(second)["names"]) == {"kept", "fresh", "d", "d/x"}
    # A renamed folder is not sent again, and yet has moved.
    settle(home)
    (home / "d").rename(home / "e")
    third = save(home, about(second)["at"])
    assert "e/x" not in members(third)
    (tmp_path / "new").mkdir()
    restore(tmp_path / "new", first, second, third)
    assert tree(tmp_path / "new") == tree(home)


def test_folders_that_changed_places_are_found(tmp_path):
    home, new = tmp_path / "home", tmp_path / "new"
    new.mkdir()
    for name in ("a/in", "b", "c/sub"):
        (home / name).mkdir(parents=True)
        (home / name / "file").write_text(name)
    settle(home)
    first = save(home)
    settle(home)
    (home / "c" / "sub").rename(home / "sub")
    (home / "c").rmdir()
    (home / "a").rename(home / "x")
    (home / "b").rename(home / "a")
    (home / "x").rename(home / "b")
    (home / "b" / "in").rename(home / "b" / "out")
    (home / "sub").rename(home / "a" / "sub")
    second = save(home, about(first)["at"])
    assert not [name for name in members(second) if name.endswith("file")]
    restore(new, first, second)
    assert tree(new) == tree(home)


def test_a_clock_that_was_set_back_gives_everything(tmp_path):
    (tmp_path / "file").write_text("x")
    later = about(save(tmp_path))["at"] + 3_600_000
    assert members(save(tmp_path, later)) == {"file"}


def test_the_cap_holds_and_the_largest_files_stay_behind(tmp_path):
    home = tmp_path / "home"
    (home / "d").mkdir(parents=True)
    for number in range(40):
        (home / "d" / f"{number}").write_bytes(os.urandom(100_000))
    (home / "d" / "small").write_text("small")
    (home / "huge").write_bytes(os.urandom(3 << 20))
    layer = save(home, most=2 << 20)
    names = set(about(layer)["names"])
    assert len(layer) <= 2 << 20
    assert {"d", "d/small"} < names
    assert "huge" not in names
    assert members(layer) == names
    assert 15 <= len(names) <= 22
    # What is kept depends on the home alone: a changed file that fits is in its layer.
    settle(home)
    (home / "d" / "small").write_text("changed")
    assert "d/small" in members(save(home, about(save(home))["at"] - 1, most=2 << 20))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 70_000), st.binary(min_size=1, max_size=60))), st.data())
def test_no_layer_is_larger_than_its_cap(files, data):
    most = data.draw(st.integers(0, 1 << 20))
    with two_homes() as (old, _):
        for size, name in files:
            inside = base64.urlsafe_b64encode(name)
            with open(os.path.join(os.fsencode(old), inside), "wb") as file:
                file.write(os.urandom(size))
        kept = within(walk(str(old)), most)
        assert not kept or len(save(old, most=most)) <= most


def test_what_cannot_be_carried_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / LAYER).write_text("reserved")
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o4755)
    deep = tmp_path
    for _ in range(DEEPEST + 10):
        deep /= "d"
        deep.mkdir()
    names = about(save(tmp_path))["names"]
    assert {"pipe", LAYER}.isdisjoint(names)
    assert len(names) == DEEPEST + 2
    assert max(name.count("/") for name in names) == DEEPEST


def archive(*entries, header=None):
    """Make a layer of (name, type, content or link)."""
    body = io.BytesIO()
    if header is not None:
        entries = ((LAYER, REG, json.dumps(header).encode()), *entries)
    with tarfile.open(fileobj=body, mode="w:gz") as tar:
        for name, kind, what in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.devmajor, info.devminor = kind, 0o6755, 1, 3
            if kind == REG:
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what))
            else:
                info.linkname = what
                tar.addfile(info)
    return body.getvalue()


HOSTILE = {
    "a name with dots": (archive(("../out", REG, b"x")), "leads out"),
    "a name with dots inside": (archive(("fine/../../out", REG, b"x")), "leads out"),
    "an absolute name": (archive(("/tmp/out", REG, b"x")), "leads out"),
    "an absolute hard link": (archive(("hard", LNK, "/etc/shadow")), "leads out"),
    "a hard link with dots": (archive(("hard", LNK, "../out")), "leads out"),
    "a device": (archive(("null", tarfile.CHRTYPE, "")), "device"),
    "a disk": (archive(("disk", tarfile.BLKTYPE, "")), "device"),
    "a pipe": (archive(("pipe", tarfile.FIFOTYPE, "")), "device"),
    "a list with dots": (archive(header={"names": ["../out"]}), "leads out"),
    "folders with dots": (
        archive(header={"names": [], "folders": [["../out", "1"]]}),
        "leads out",
    ),
    "no list": (archive(header={"names": 7}), "damaged"),
    "no object": (archive(header=[]), "damaged"),
    "no JSON": (archive((LAYER, REG, b"no json")), "damaged"),
    "nothing": (b"", "damaged"),
    "nonsense": (b"nonsense", "damaged"),
    "no archive": (gzip.compress(os.urandom(5000)), "damaged"),
    "no end": (archive(("file", REG, b"x" * 9000))[:-9], "damaged"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_or_damaged_layer_is_refused(tmp_path, what):
    layer, sentence = HOSTILE[what]
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "out").write_text("mine")
    with pytest.raises(Trouble, match=sentence):
        restore(home, layer)
    assert (tmp_path / "out").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["home", "out"]
    assert not [name for name in os.listdir(home) if name != "file"]


def test_nothing_is_written_through_a_link(tmp_path):
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    layer = archive(
        ("link", SYM, str(out)),
        ("link/through", REG, b"x"),
        ("up", SYM, ".."),
        ("up/up", REG, b"x"),
        ("file", SYM, str(out / "target")),
        ("file", REG, b"not through the link"),
        ("hard", LNK, "link/x"),
    )
    counts = restore(home, layer)
    assert counts == {"restored": 4, "skipped": 3}
    assert os.listdir(out) == []
    assert (home / "file").read_bytes() == b"not through the link"
    assert stat.S_IMODE((home / "file").stat().st_mode) == 0o755


def test_a_list_that_makes_no_sense_does_no_harm(tmp_path):
    home = tmp_path / "home"
    (home / "d").mkdir(parents=True)
    (home / "d" / "x").write_text("x")
    folders = [["d", "1"], ["d/d", "2"]]
    swapped = [["d/d", "1"], ["d", "2"]]
    one = archive(header={"names": ["d/x"], "folders": folders})
    two = archive(header={"names": ["d/x", "y"], "folders": swapped})
    restore(home, one, two)
    assert set(tree(home)) <= {"d", "d/x"}


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(Trouble, match=r"cannot be restored: .*No space left"):
        restore(tmp_path, archive(("file", REG, b"x")))
