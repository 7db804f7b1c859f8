"""`ssh-config --install` changes one line of what is somebody else's file, and takes it back."""

from __future__ import annotations

import json
import subprocess

import pytest

from cli.person import Person
from essaim.cli.copy import REMOTE

OTHERS = "# mine\nHost *.example.org\n  User \xe9\n\n\nHost *\n  Compression no"


@pytest.fixture
def person(tmp_path):
    return Person(tmp_path / "a home")


@pytest.fixture
def rented(person):
    """A lease of two machines, as `rent` remembers it."""
    folder = person.client / "leases"
    folder.mkdir(parents=True, mode=0o700)
    way = {
        "account": "l-3k9x2m7q",
        "host": "gateway.example.org",
        "port": 2222,
        "host_key": "ssh-ed25519 AAAA",
        "identity": str(person.home / "key %d"),
    }
    (folder / "l-3k9x2m7q.json").write_text(json.dumps({**way, "machines": 2}))
    older = {**way, "account": "l-older000"}  # as it was kept before
    (folder / "l-older000.json").write_text(json.dumps(older))
    return person


def resolved(person, name):
    """What ssh makes of a name."""
    words = ["ssh", "-G", "-F", str(person.home / ".ssh" / "config"), name]
    done = subprocess.run(words, capture_output=True, check=True)
    lines = done.stdout.decode("latin-1").splitlines()
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    return {key: found.get(key) for key in ("hostname", "user", "port", "compression")}


def test_ssh_knows_the_names_and_all_else_stays_as_it_was(rented):
    config = rented.home / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    dotfiles = rented.home / "dotfiles"
    dotfiles.write_text(OTHERS, encoding="latin-1")
    dotfiles.chmod(0o640)
    config.symlink_to(dotfiles)
    for _ in range(2):
        rented.does("ssh-config", "--install")
        lines = dotfiles.read_text(encoding="latin-1").splitlines()
        assert sum(line.startswith("Include") for line in lines) == 1
        assert lines[1].startswith("Include")
    assert config.is_symlink()
    assert dotfiles.stat().st_mode & 0o777 == 0o640

    expected = {"hostname": "gateway.example.org", "port": "2222", "compression": "no"}
    for name in ("l-3k9x2m7q", "l-3k9x2m7q.1"):
        assert resolved(rented, name) == {**expected, "user": "l-3k9x2m7q"}
    assert resolved(rented, "l-3k9x2m7q.2") == {**expected, "user": "l-3k9x2m7q.2"}
    assert resolved(rented, "l-older000")["user"] == "l-older000"
    assert resolved(rented, "l-older000.2")["hostname"] == "l-older000.2", "it has one machine"
    assert resolved(rented, "www.example.org")["hostname"] == "www.example.org"

    rented.does("ssh-config", "--uninstall")
    assert dotfiles.read_text(encoding="latin-1") == OTHERS
    assert not (rented.client / "ssh_config.d").exists()
    rented.does("ssh-config", "--uninstall")


def test_without_a_configuration_one_is_made_for_nobody_elses_eyes(person):
    person.does("ssh-config", "--install")
    config = person.home / ".ssh" / "config"
    assert config.stat().st_mode & 0o777 == 0o600
    assert config.parent.stat().st_mode & 0o777 == 0o700
    assert person.does("ssh-config") == ""
    assert "not both" in person.does("ssh-config", "--install", "--uninstall", code=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slurm/controller:", ("slurm/controller", "")),
        ("slurm/nodes-2:a b/c:d", ("slurm/nodes-2", "a b/c:d")),
        ("l-3k9x2m7q.2:/x\ny", ("l-3k9x2m7q.2", "/x\ny")),
        ("slurm.controller:x", ("slurm.controller", "x")),
        ("./slurm:x", None),
        ("/tmp/a:b", None),
        ("job.sh", None),
        ("a/b/c:d", None),
        ("-x:y", None),
        ("Weird:x", None),
    ],
)
def test_a_machines_path_is_told_from_one_of_this_computer(text, expected):
    found = REMOTE.fullmatch(text)
    assert (found and found.groups()) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cp", "job.sh"], "where to"),
        (["cp", "job.sh", "other"], "MACHINE:PATH"),
        (["cp", "job.sh", "nothing/here:"], "nothing"),
    ],
)
def test_a_copy_that_cannot_be_is_explained(person, words, said):
    assert said in person.does(*words, code=2)
