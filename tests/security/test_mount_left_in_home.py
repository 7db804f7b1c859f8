"""A tenant who leaves a mount, and a server of it that never answers, does not cost a node."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import agent.conftest as machines
from agent.worker import until

pytestmark = pytest.mark.root
box, lease = machines.box, machines.lease

#: What `fusermount` does for a user, and a server that reads no request, or is gone at once.
FUSE = """
import ctypes, os, sys, time
place, uid, life = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"left", place.encode(), b"fuse.left", 6, options) == 0, ctypes.get_errno()
if os.fork() == 0:
    os.setsid()
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    for stream in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), stream)
    time.sleep(life)
"""
#: In namespaces of its own: one thread waits for what another has read and never answers, so
#: that the process cannot even be killed.
LOCKED = """
import ctypes, os, sys, threading, time
uid, gid = os.getuid(), os.getgid()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x10000000 | 0x20000) == 0, ctypes.get_errno()
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
place = os.path.expanduser("~/locked")
os.mkdir(place)
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id={uid},group_id={gid}".encode()
assert libc.mount(b"left", place.encode(), b"fuse", 6, options) == 0, ctypes.get_errno()
if os.fork() == 0:
    os.setsid()
    for stream in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), stream)
    threading.Thread(target=os.stat, args=(place,)).start()
    os.read(fd, 1 << 20)  # the first request is how to begin
    answer = (80).to_bytes(4, "little") + bytes(4) + (2).to_bytes(8, "little")
    answer += (7).to_bytes(4, "little") + (31).to_bytes(4, "little") + bytes(56)
    os.write(fd, answer)
    os.read(fd, 1 << 20)
    open(os.path.expanduser("~/waits"), "w")
    time.sleep(1000)
"""
TABLE = "grep -c /home/l- /proc/self/mountinfo || :"


#: Makes a device of the computer appear in a machine, which can make none itself.
SHOW = """
import os, sys
from essaim.drivers.sandbox import linux
device, pid = sys.argv[1:]
tree = linux.clone_mount(device)
linux.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), linux.CLONE_NEWNS)
linux.attach(tree, "/dev/fuse")
"""
#: Ends all file systems in user space of these ids.  A process that waits for itself cannot be
#: killed, and its machine could not end.
ABORT = """
import sys
from pathlib import Path
from essaim.drivers.sandbox import linux
first, count, place = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
linux.mount("fusectl", str(place), "fusectl")
for connection in place.iterdir():
    if first <= connection.stat().st_uid < first + count:
        (connection / "abort").write_text("1")
"""


@pytest.fixture
def fuse(box, tmp_path):
    """Let the machine have file systems in user space, as most computers do."""
    first = first_process(box)
    if box.sh("test -c /dev/fuse", ok=False).exit_code:
        device = tmp_path / "fuse"
        os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
        device.chmod(0o666)
        box.sh("touch /dev/fuse")
        subprocess.run([sys.executable, "-c", SHOW, str(device), first], check=True)
    if box.sh(": </dev/fuse", ok=False).exit_code:
        pytest.skip("this kernel has no file systems in user space")
    yield
    _, outside, count = Path(f"/proc/{first}/uid_map").read_text().split()
    if outside != "0":  # its ids are nobody else's
        place = tmp_path / "connections"
        place.mkdir()
        words = ["unshare", "--mount", sys.executable, "-c", ABORT, outside, count, str(place)]
        subprocess.run(words, check=True)


def first_process(box) -> str:
    """The machine's first process, as the computer numbers it."""
    namespace = box.sh("readlink /proc/1/ns/pid").stdout.strip()
    for each in Path("/proc").glob("[0-9]*/ns/pid"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if str(each.readlink()) == namespace:
                return each.parts[2]
    raise AssertionError(f"no process in {namespace}")


def take(box, lease) -> tuple[str, int]:
    account = lease()
    return account, int(box.sh(f"id -u {account}; mkdir /home/{account}/mnt").stdout)


def check_serves_on(box, lease, account):
    began = time.monotonic()
    assert box.helper("remove", {"account": account})["ok"]
    after = box.helper("verify", {"account": account})
    assert (after["clean"], after["found"]) == (True, [])
    assert time.monotonic() - began < 60
    assert box.sh(TABLE).stdout == "0\n"
    answer = box.helper("clean", {})
    assert (answer["clean"], answer["found"]) == (True, [])
    lease(account)  # the next one finds a home
    assert box.ssh(account, "touch mine").returncode == 0


@pytest.mark.parametrize("life", [0, 1000], ids=["server is gone", "server is silent"])
def test_a_file_system_of_the_tenant_is_taken_away(box, lease, fuse, life):
    account, uid = take(box, lease)
    box.sh('python3 -c "$@"', FUSE, f"/home/{account}/mnt", str(uid), str(life))
    assert box.sh(TABLE).stdout == "1\n"
    left = box.helper("verify", {"account": account})["found"]
    assert f"mount /home/{account}/mnt" in left
    check_serves_on(box, lease, account)


def test_one_outside_of_the_home_too(box, lease, fuse):
    account, uid = take(box, lease)
    box.sh("mkdir -p /tmp/elsewhere")
    box.sh('python3 -c "$@"', FUSE, "/tmp/elsewhere", str(uid), "1000")
    check_serves_on(box, lease, account)
    assert box.sh("grep -c /tmp/elsewhere /proc/self/mountinfo || :").stdout == "0\n"


def test_one_that_locks_its_own_server_cannot_hold_the_node(box, lease, fuse):
    account, _uid = take(box, lease)
    done = box.ssh(account, f"python3 -c '{LOCKED}'")
    assert done.returncode == 0, done.stderr
    until(lambda: box.sh(f"test -e /home/{account}/waits", ok=False).exit_code == 0, within=20)
    check_serves_on(box, lease, account)


def test_a_silent_one_does_not_hold_up_the_copy_of_a_home(box, lease, fuse):
    account, uid = take(box, lease)
    box.ssh(account, "touch kept")
    box.sh('python3 -c "$@"', FUSE, f"/home/{account}/mnt", str(uid), "1000")
    request = f'{{"account": "{account}", "most_mib": 1}}'
    copy = f"echo '{request}' | timeout 20 /usr/local/lib/essaim/helper save | tar tz"
    names = box.sh(copy).stdout.split()
    assert "kept" in names
    assert "mnt" not in names


def test_what_others_mounted_there_goes_and_its_files_stay(box, lease):
    """Also one over the other, below a folder of any name, and past a link that leads elsewhere."""
    account, _uid = take(box, lease)
    box.sh(
        "cd $1; mkdir -p /srv/lent /srv/kept; touch /srv/lent/file; ln -s /srv/kept link; "
        "mount -t tmpfs none /srv/kept; mount --bind /srv/lent mnt; mount -t tmpfs none mnt; "
        "mkdir 'mnt/a b'; mount -t tmpfs none 'mnt/a b'",
        f"/home/{account}",
    )
    try:
        check_serves_on(box, lease, account)
        assert box.sh("ls /srv/lent; grep -c /srv/kept /proc/self/mountinfo").stdout == "file\n1\n"
    finally:
        box.sh("umount /srv/kept; rm -rf /srv/kept /srv/lent")


def test_the_helper_reaches_mounts_from_a_namespace_of_its_own(box, lease):
    account, _uid = take(box, lease)
    box.sh(
        "mount --make-rprivate /; mount -t tmpfs none /home/$1/mnt; "
        "echo '{\"account\": \"'$1'\"}' | unshare -m /usr/local/lib/essaim/helper remove",
        account,
    )
    check_serves_on(box, lease, account)
