"""Keys are made once, kept private, and are what OpenSSH takes for keys."""

from __future__ import annotations

import stat
import subprocess
import sys

import pytest

from essaim.model.names import MachineName
from essaim.remote.keyring import Keyring, alias
from remote.rig import until

ONE, TWO = MachineName("lab", "one"), MachineName("lab", "two")


def test_keys_stay_the_same_and_differ_from_each_other(tmp_path):
    first, second = Keyring(tmp_path / "keys"), Keyring(tmp_path / "keys")
    assert first.host_public_key(ONE) == second.host_public_key(ONE)
    assert first.host_key(ONE) == second.host_key(ONE)
    assert first.user_public_key() == second.user_public_key()
    assert first.digest_key() == second.digest_key()
    assert (
        len({first.host_public_key(ONE), first.host_public_key(TWO), first.user_public_key()}) == 3
    )


def test_nobody_else_can_read_them(tmp_path):
    keyring = Keyring(tmp_path / "keys")
    keyring.user_key()
    keyring.host_key(ONE)
    keyring.digest_key()
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_openssh_reads_them(tmp_path):
    keyring = Keyring(tmp_path / "keys")
    told = subprocess.run(
        ["ssh-keygen", "-y", "-f", keyring.user_key()], capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[:2] == keyring.user_public_key().split()
    public = keyring.user_key().with_name("id_ed25519.pub").read_text()
    assert public.strip() == keyring.user_public_key()


def test_known_hosts_pins_each_machine_by_its_alias(tmp_path):
    keyring = Keyring(tmp_path / "keys")
    path = keyring.known_hosts_file([ONE, TWO])
    assert path.read_text() == keyring.known_hosts([ONE, TWO])
    for name in (ONE, TWO):
        found = subprocess.run(
            ["ssh-keygen", "-F", alias(name), "-f", path],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert keyring.host_public_key(name) in found.stdout


def test_forgetting_a_stack_leaves_the_others(tmp_path):
    keyring = Keyring(tmp_path / "keys")
    other = MachineName("other", "one")
    before, kept = keyring.host_public_key(ONE), keyring.host_public_key(other)
    keyring.forget("lab")
    keyring.forget("lab")
    assert keyring.host_public_key(ONE) != before
    assert keyring.host_public_key(other) == kept


@pytest.mark.parametrize("name", [MachineName("..", "x"), MachineName("lab", "../x")])
def test_a_name_that_is_a_path_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"\.\."):
        Keyring(tmp_path / "keys").host_key(name)


ASK = """
import pathlib, sys, time
from essaim.model.names import MachineName
from essaim.remote.keyring import Keyring

root = pathlib.Path(sys.argv[1])
Keyring(root / "warm").host_key(MachineName("lab", "warm"))  # the import is over before the race
(root / f"ready-{sys.argv[2]}").touch()
while not (root / "go").exists():
    time.sleep(0.001)
keyring = Keyring(root / "keys")
print(keyring.user_public_key())
for number in range(40):
    print(keyring.host_public_key(MachineName("lab", f"m-{number}")))
"""


def test_processes_that_make_the_same_keys_at_once_get_the_same_keys(tmp_path):
    many = 4
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, tmp_path, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(many)
    ]
    until(lambda: len(list(tmp_path.glob("ready-*"))) == many)
    (tmp_path / "go").touch()
    answers = {worker.communicate(timeout=120)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0] * many
    assert len(answers) == 1
    assert len(set(answers.pop().split("\n"))) == 42
    assert [path.name for path in (tmp_path / "keys").rglob(".*")] == []


def test_a_pinned_key_is_believed_until_the_machine_is_given_one_of_ours(tmp_path):
    keyring, name = Keyring(tmp_path / "keys"), MachineName("lab", "old")
    keyring.pin(name, "ssh-ed25519 AAAAC3Nza")
    assert keyring.host_public_key(name) == "ssh-ed25519 AAAAC3Nza"
    assert keyring.known_hosts([name]) == "lab.old ssh-ed25519 AAAAC3Nza\n"
    keyring.host_key(name)
    assert keyring.host_public_key(name) != "ssh-ed25519 AAAAC3Nza"
    keyring.pin(name, "ssh-ed25519 AAAAC3Nza")
    keyring.forget("lab")
    assert keyring.host_public_key(name) != "ssh-ed25519 AAAAC3Nza"
