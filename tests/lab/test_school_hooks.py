"""What the shipped hooks refuse, without a container; `tests/endtoend` has them in real ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from essaim.drivers.proxmox.wishes import PUT

HOOKS = Path(__file__).parents[2] / "examples" / "school" / "hooks"


def run(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
    )


def mount(files: Path, root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """As Essaim's own mount hook does it."""
    words = ("sh", "-c", f'set -eu\n{PUT}\n. "$1"', "sh", HOOKS / "mount.sh")
    return run(*words, LXC_ROOTFS_MOUNT=str(root), ESSAIM_DIRECTORY_FILES=str(files), **env)


@pytest.fixture
def files(tmp_path) -> Path:
    place = tmp_path / "files"
    place.mkdir()
    (place / "ca.pem").write_text("CA\n")
    (place / "bind.password").write_text("s3cret\n")
    return place


def test_the_mount_hook_copies_what_only_root_may_read(tmp_path, files):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for _ in range(2):
        assert mount(files, root, ESSAIM_DIRECTORY_BIND_DN="cn=x").returncode == 0
    found = root / "etc/essaim/directory"
    assert (found / "bind.password").read_text() == "s3cret\n"
    assert [oct(path.stat().st_mode)[-3:] for path in (found, found / "ca.pem")] == ["700", "600"]


@pytest.mark.parametrize("missing", ["ca.pem", "bind.password"])
def test_a_node_that_is_not_prepared_is_told(tmp_path, files, missing):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (files / missing).unlink()
    done = mount(files, root, ESSAIM_DIRECTORY_BIND_DN="cn=x")
    assert done.returncode == 1
    assert f"{files}/{missing} on this node: run prepare-node.sh" in done.stderr
    # A directory that everybody may read takes no password.
    assert mount(files, root).returncode == (1 if missing == "ca.pem" else 0)


@pytest.mark.parametrize("link", ["etc", "etc/essaim", "etc/essaim/directory"])
def test_a_link_in_the_container_does_not_lead_the_password_elsewhere(tmp_path, files, link):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(elsewhere)
    done = mount(files, root, ESSAIM_DIRECTORY_BIND_DN="cn=x")
    assert done.returncode == 1
    assert f"/{link} of the container is a symbolic link" in done.stderr
    assert list(elsewhere.iterdir()) == []


def test_a_linked_file_in_the_container_is_replaced(tmp_path, files):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "etc/essaim/directory").mkdir(parents=True)
    (root / "etc/essaim/directory/bind.password").symlink_to(elsewhere)
    assert mount(files, root, ESSAIM_DIRECTORY_BIND_DN="cn=x").returncode == 0
    assert not elsewhere.exists()


@pytest.mark.root
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("ESSAIM_LOGIN=alice,bob", "'alice,bob' cannot be the login"),
        ("ESSAIM_LOGIN='alice\nx = y'", "cannot be the login"),
        ("", "'' cannot be the login"),
        ("ESSAIM_LOGIN=alice", "directory_uri of the image must begin with ldaps://"),
        ("ESSAIM_LOGIN=alice ESSAIM_DIRECTORY_URI=http://x", "must begin with ldaps://"),
        ("ESSAIM_LOGIN=alice ESSAIM_DIRECTORY_URI=ldaps://x", "directory_base of the image"),
    ],
)
def test_the_start_hook_refuses_what_would_let_in_others(tmp_path, values, says):
    (tmp_path / "start").write_text((HOOKS / "start.sh").read_text())
    (tmp_path / "values").write_text(f"{values}\n")
    # It writes a log where it runs, which is no container here.
    words = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /var/log; exec sh "$1"', "sh")
    done = run(*words, tmp_path / "start")
    assert done.returncode == 1, done.stderr
    assert says in done.stderr


def test_preparing_a_node_says_what_it_needs():
    done = run("sh", HOOKS / "prepare-node.sh")
    assert done.returncode == 2
    assert "prepare-node.sh --ca ca.pem --bind-password bind.password" in done.stderr
    assert "set -eu" not in done.stderr
