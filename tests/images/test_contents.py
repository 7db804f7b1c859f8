"""One digest for a whole root file system: all that a machine could notice is in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from drivers.plain_user import unpack_for
from essaim.images.contents import altered_files, rootfs_digest, tree_digest


def grow(root: Path) -> Path:
    """A small root file system."""
    for folder in ("etc", "usr/bin", "var/log", "var/cache/apt", "dev", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "etc/shadow").write_text("root:*:20000:0:99999:7:::\nsshd:!:20000::::::\n")
    (root / "usr/bin/tool").write_bytes(b"\x7fELF")
    (root / "usr/bin/tool").chmod(0o755)
    (root / "bin").symlink_to("usr/bin")
    return root


@pytest.fixture
def tree(tmp_path) -> Path:
    return grow(tmp_path / "rootfs")


def test_the_same_files_elsewhere_and_later_have_the_same_digest(tree, tmp_path):
    other = grow(tmp_path / "other")
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert tree_digest(other) == tree_digest(tree)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "usr/bin/tool").write_bytes(b"\x7fELG"),
        lambda root: (root / "usr/bin/tool").chmod(0o4755),
        lambda root: (root / "usr/bin/tool").rename(root / "usr/bin/loot"),
        lambda root: (root / "usr/bin/.hidden").touch(),
        lambda root: (root / "etc/empty").mkdir(),
        lambda root: ((root / "bin").unlink(), (root / "bin").symlink_to("usr/sbin")),
        lambda root: ((root / "bin").unlink(), (root / "bin").write_text("usr/bin")),
        lambda root: (root / "etc/shadow").write_text("root::20000:0:99999:7:::\n"),
        lambda root: (root / "var/log").rmdir(),
        lambda root: os.mkfifo(root / "etc/pipe"),
    ],
)
def test_every_change_of_a_file_changes_it(tree, change):
    before = tree_digest(tree)
    change(tree)
    assert tree_digest(tree) != before


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_so_does_another_owner(tree):
    before = tree_digest(tree)
    os.chown(tree / "usr/bin/tool", 1, 0)
    owner = tree_digest(tree)
    os.chown(tree / "usr/bin/tool", 0, 1)
    assert len({before, owner, tree_digest(tree)}) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "var/log/dpkg.log").write_text("today\n"),
        lambda root: (root / "var/cache/apt/pkgcache.bin").write_text("x"),
        lambda root: (root / "dev/console").touch(),
        lambda root: (root / "etc/shadow").write_text(
            "root:*:20001:0:99999:7:::\nsshd:!:20001::::::\n"
        ),
    ],
)
def test_the_day_of_the_build_does_not(tree, change):
    before = tree_digest(tree)
    change(tree)
    assert tree_digest(tree) == before


def test_a_folder_of_one_name_is_not_a_file_of_another(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "a").mkdir(parents=True)
    (one / "a" / "b").touch()
    two.mkdir()
    (two / "a").mkdir()
    (two / "b").touch()
    assert tree_digest(one) != tree_digest(two)


@pytest.mark.root
def test_a_plain_user_finds_what_root_finds(somebody, tmp_path):
    """In their copy, files belong to ids of theirs, and some are hidden even from themselves."""
    tree = grow(tmp_path / "rootfs")
    (tree / "var/secret").mkdir(mode=0o700)
    (tree / "var/secret/key").write_text("x")
    os.chown(tree / "var/secret", 101, 105)
    target = somebody.home / "tree"
    pack = subprocess.run(["tar", "-C", tree, "-c", "."], capture_output=True, check=True)
    made = somebody.run("mkdir", str(target))
    assert made.returncode == 0, made.stderr
    unpack = ("unshare", "--user", "--map-auto", "--map-root-user", "tar", "-C", target, "-xp")
    subprocess.run(
        somebody.command(*map(str, unpack)), input=pack.stdout, env=somebody.env, check=True
    )
    program = (
        "import sys; from pathlib import Path; from essaim.images.contents import rootfs_digest;"
        "sys.stdout.write(rootfs_digest(Path(sys.argv[1])))"
    )
    done = somebody.run_python("-c", program, str(target))
    assert done.returncode == 0, done.stderr
    assert done.stdout == tree_digest(tree)
    shutil.rmtree(target)


@pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's goes through a namespace")
def test_root_reads_a_tree_itself(tree):
    assert rootfs_digest(tree) == tree_digest(tree)


@pytest.mark.root
def test_files_that_are_not_as_their_packages_have_them_are_listed(base, somebody, tmp_path):
    """Whoever asks: root here, and a plain user in a copy of their own."""
    here = altered_files(base)
    assert here is not None
    assert not any(path.startswith("/usr/share/doc") for path in here)
    changed = tmp_path / "changed"
    subprocess.run(["cp", "-a", "--reflink=auto", base, changed], check=True)
    with (changed / "etc/bash.bashrc").open("a") as file:
        file.write("more\n")
    (changed / "usr/bin/pgrep").unlink()
    assert set(altered_files(changed) or ()) - set(here) == {"/etc/bash.bashrc", "/usr/bin/pgrep"}
    theirs = unpack_for(somebody, changed)
    program = (
        "import sys; from pathlib import Path; from essaim.images.contents import altered_files;"
        "print(*altered_files(Path(sys.argv[1])), sep='\\n')"
    )
    done = somebody.run_python("-c", program, str(theirs))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == altered_files(changed)
