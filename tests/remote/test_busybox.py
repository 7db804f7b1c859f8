"""The smallest machine there is: busybox for a userland, dropbear for an SSH server."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from essaim.config.roles import read_role
from essaim.config.tree import Tree
from essaim.model.errors import TransientError
from essaim.model.names import MachineName
from essaim.remote import roles
from essaim.remote.roles import Facts
from essaim.remote.ssh import Target
from essaim_lab import computer
from essaim_lab.computer import free_port
from remote.conftest import machine
from remote.rig import until

INIT = r"""
set -eu
cd "$1"
mount --make-rprivate /
mkdir -p proc dev
mount -t proc proc proc
for node in null urandom; do
  : >dev/$node
  mount --bind /dev/$node dev/$node
done
exec chroot . /bin/sh -c '
  PATH=/bin; export PATH
  dropbear -F -E -p 127.0.0.1:'"$2"' -r /etc/host_key &
  trap : TERM
  while :; do sleep 3600 & wait; done
'
"""


class Smallest:
    """A root directory with two programs in it, in namespaces of its own."""

    def __init__(self, root, keyring):
        self.name = MachineName("lab", "smallest")
        self.root, self.port = root, free_port()
        self._plant(keyring)
        self._box = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child",
             "sh", "-c", INIT, "init", str(root), str(self.port)],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.target = Target(
            name=self.name,
            address="127.0.0.1",
            port=self.port,
            host_key=keyring.host_public_key(self.name),
        )

    def _plant(self, keyring):
        root = self.root
        for folder in ("bin", "etc", "root/.ssh", "tmp", "var/lib", "run"):
            (root / folder).mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        subprocess.run(["chroot", root, "/bin/busybox", "--install", "-s", "/bin"], check=True)
        dropbear = shutil.which("dropbear", path="/usr/sbin:/usr/bin")
        listed = subprocess.run(["ldd", dropbear], capture_output=True, text=True, check=True)
        for library in re.findall(r"(/\S+) \(", listed.stdout):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
        shutil.copy(dropbear, root / "bin/dropbear")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        (root / "etc/shells").write_text("/bin/sh\n")
        (root / "root/.ssh/authorized_keys").write_text(keyring.user_public_key() + "\n")
        for path in (root, root / "root", root / "root/.ssh"):
            path.chmod(0o700)
        key = root / "etc/key"
        key.write_text(keyring.host_key(self.name))
        key.chmod(0o600)
        subprocess.run(
            ["dropbearconvert", "openssh", "dropbear", key, root / "etc/host_key"],
            check=True, capture_output=True,
        )  # fmt: skip

    def running(self, word):
        """Command lines there that hold a word; every one of them is chrooted into our root."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if word in line and os.readlink(process / "root") == str(self.root):
                    found.append(line)
            except (OSError, ValueError):
                continue
        return found

    def close(self):
        self._box.send_signal(signal.SIGKILL)
        self._box.wait()


@pytest.fixture(scope="module")
def smallest(keyring, tmp_path_factory):
    if os.geteuid():
        pytest.skip("making machines out of namespaces needs root")
    computer.need({"/bin/busybox": "busybox-static", "dropbearconvert": "dropbear-bin"})
    box = Smallest(tmp_path_factory.mktemp("smallest"), keyring)
    yield box
    box.close()


@pytest.fixture
def names():
    return read_role(Tree("examples/bare"), "names").role


def peers(*pairs):
    return [machine(MachineName("lab", name), address=address) for name, address in pairs]


@pytest.mark.root
def test_commands_variables_and_files_come_through(shared_remote, smallest):
    shared_remote.reach(smallest.target, within=60)
    words = ["printf", "%s|", "a b", "$(id)", "é☃", "a\nb", "'"]
    result = shared_remote.run(smallest.target, words, within=60)
    assert result.stdout == "a b|$(id)|é☃|a\nb|'|"
    result = shared_remote.run(smallest.target, 'echo "$A"; exit 7', env={"A": "$(b)"}, within=60)
    assert (result.stdout, result.exit_code) == ("$(b)\n", 7)
    body = os.urandom(1_000_000)
    result = shared_remote.run(smallest.target, ["sha256sum"], stdin=body, within=60)
    assert result.stdout.split()[0] == hashlib.sha256(body).hexdigest()


@pytest.mark.root
def test_machines_know_each_other_and_keep_what_others_wrote(shared_remote, smallest, names, logs):
    hosts = smallest.root / "etc/hosts"
    hosts.write_text(
        "127.0.0.1 localhost smallest\n127.0.1.1 smallest.lab smallest\n1.2.3.4 mine\n"
    )

    def apply(machines):
        members = {"machines": machines}
        given = Facts(stack="lab", network="10.77.0.0/24", machine=machines[0], members=members)
        args = (shared_remote, smallest.target, names, given, logs.record)
        changed = roles.put(*args)
        roles.run_steps(*args, logs.note)
        return changed

    first = peers(("smallest", "10.77.0.2"), ("other", "10.77.0.3"))
    assert apply(first) == ["/var/lib/essaim/hosts", "/var/lib/essaim/write-hosts"]
    block = "# essaim: names begin\n10.77.0.2 smallest\n10.77.0.3 other\n# essaim: names end\n"
    assert hosts.read_text() == "127.0.0.1 localhost\n1.2.3.4 mine\n" + block
    known = len(logs.kept)
    assert apply(first) == []
    assert len(logs.kept) == known  # nothing was due
    hosts.write_text(block + "5.6.7.8 late\n")
    apply(peers(("smallest", "10.77.0.2"), ("third", "10.77.0.4")))
    block = block.replace("10.77.0.3 other", "10.77.0.4 third")
    assert hosts.read_text() == "5.6.7.8 late\n127.0.0.1 localhost\n" + block


@pytest.mark.root
def test_a_command_ends_when_its_time_is_over(shared_remote, smallest):
    with pytest.raises(TransientError):
        shared_remote.run(smallest.target, "sleep 4711 & sleep 4712", within=2)
    until(lambda: not smallest.running("sleep 471"))
