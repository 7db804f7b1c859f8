"""Root in a container does not make the node's mount hook write outside of the container."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drivers.test_proxmox_extras import wanted
from essaim.drivers.proxmox import wishes

HOOK = Path(__file__).parents[2] / "examples" / "school" / "hooks" / "mount.sh"
#: Every folder and file that the hooks write to, and what is above them.
FOLDERS = ("etc", "etc/essaim", "etc/essaim/directory", "root", "root/.ssh")
FILES = (
    "etc/essaim/directory/ca.pem", "etc/essaim/directory/bind.password",
    "root/.ssh/authorized_keys", "var/lib/essaim/start", "var/lib/essaim/values",
)  # fmt: skip
#: Often enough that a hook that looks first and writes afterwards is caught.
ROUNDS = 40
SWAP = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
one, other = (each.encode() for each in sys.argv[1:])
print("ready", flush=True)
while True:
    libc.renameat2(-100, one, -100, other, 2)  # RENAME_EXCHANGE
"""


@pytest.fixture
def node(tmp_path) -> Path:
    """The node's folder of a container, as Essaim writes it, with the hook that is shipped."""
    extras = {"hooks": {"mount": HOOK.read_text(), "start": "exit 0\n"}}
    place = tmp_path / "node"
    for name, (body, mode) in wishes.read(wanted(extras), 50003).files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        path.chmod(mode)
    files = tmp_path / "files"
    files.mkdir()
    for name in ("ca.pem", "bind.password"):
        (files / name).write_text("secret\n")
    return place


@pytest.fixture
def outside(tmp_path) -> Path:
    """Files of the node, or of another container, that the links lead to."""
    place = tmp_path / "outside"
    for folder in (*FOLDERS, "directory", "essaim", ".ssh", "var/lib/essaim"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    for name in ("ca.pem", "bind.password", "authorized_keys", "values", "start"):
        (place / name).write_text("the node's own\n")
    return place


def seen(place: Path) -> dict[str, tuple[int, str]]:
    """Everything below a folder: its mode, and its content if it is a file."""
    return {
        str(path.relative_to(place)): (path.stat().st_mode, path.read_text())
        if path.is_file()
        else (path.stat().st_mode, "")
        for path in place.rglob("*")
    }


def start(node: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Run the mount hook as LXC does."""
    environ = {
        "PATH": os.environ["PATH"],
        "LXC_ROOTFS_MOUNT": str(root),
        "ESSAIM_DIRECTORY_FILES": str(node.parent / "files"),
        "ESSAIM_DIRECTORY_BIND_DN": "cn=reader",
    }
    words = [str(node / "mount")]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


def container(tmp_path: Path, name: str = "root") -> Path:
    root = tmp_path / name
    for folder in (*FOLDERS, "var/lib/essaim"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    return root


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_link_in_the_place_of_a_folder(tmp_path, node, outside, folder):
    root, before = container(tmp_path), seen(outside)
    (root / folder).rename(root / "aside")
    (root / folder).symlink_to(outside)
    done = start(node, root)
    assert done.returncode == 1
    assert f"/{folder} of the container is a symbolic link" in done.stderr
    assert seen(outside) == before


@pytest.mark.parametrize("file", FILES)
def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path, node, outside, file):
    root, before = container(tmp_path), seen(outside)
    (root / file).unlink(missing_ok=True)
    (root / file).symlink_to(outside / Path(file).name)
    (root / file).with_name(f".{Path(file).name}.essaim").symlink_to(outside / "ca.pem")
    done = start(node, root)
    assert done.returncode == 0, done.stderr
    assert (root / file).is_file()
    assert not (root / file).is_symlink()
    assert seen(outside) == before


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Exchange a folder and a link, as fast as it goes."""
    words = [sys.executable, "-c", SWAP, str(one), str(other)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("folder", ["etc/essaim", "etc/essaim/directory"])
def test_a_folder_that_becomes_a_link_while_the_hook_looks(tmp_path, node, outside, folder):
    root = container(tmp_path)
    (root / "link").symlink_to(outside)
    before = seen(outside)
    with swapping(root / folder, root / "link"):
        codes = {start(node, root).returncode for _ in range(ROUNDS)}
    assert codes <= {0, 1}
    assert seen(outside) == before


def test_what_leads_up_is_refused(tmp_path, node):
    root = container(tmp_path)
    (node / "own").write_text("put etc/../../escaped 600 </dev/null\n")
    assert "leads up" in start(node, root).stderr
    assert not (tmp_path / "escaped").exists()
