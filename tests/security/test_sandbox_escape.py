"""Root of a sandbox machine that root made gets nothing of the computer.

Every attack prints `won` when it succeeds, and changes nothing: what it may write, it writes as it
was.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivers.conftest import BASE
from drivers.lab import Lab, lab
from essaim.images.cache import Images
from essaim.model.names import MachineName

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's machines have a user namespace"),
]

#: Writes a setting of the kernel as it is.
WRITE = 'read -r old <{0} && echo "$old" >{0} && echo won'
CORE = WRITE.format("/proc/sys/kernel/core_pattern")
#: open_by_handle_at and finit_module, by kind of processor.
NUMBERS = {"x86_64": (304, 313), "aarch64": (265, 273)}
BY_HANDLE, LOAD = NUMBERS.get(os.uname().machine, NUMBERS["x86_64"])
#: Opens the directory with inode 2, an ext4's root, of the file system that a bind mount is from.
HANDLE = f"""perl -e '
open(F, "<", "/run/essaim/hosts") or die;
$handle = pack("IiII", 8, 1, 2, 0);
$fd = syscall({BY_HANDLE}, fileno(F), $handle, 0);
print "won" if $fd >= 0 && -d "/proc/self/fd/$fd/etc"
'"""
#: Whoever may load modules is told that the file is none.
MODULE = f"""perl -e 'syscall({LOAD}, -1, my $none = "", 0); print "won" if $! == 9'"""
LIMITS = "prlimit --nofile=1024:$(($(ulimit -Hn) + 1)) echo won"
#: In the braces: the computer's disk by its numbers, a process of it, a file of it.
ATTACKS = {
    "write a setting of the kernel": CORE,
    "mount /proc/sys again": f"mount -o remount,bind,rw /proc/sys; {CORE}",
    "uncover /proc/sys": f"umount -l /proc/sys; {CORE}",
    "a fresh /proc": f"unshare --mount --pid --fork --mount-proc sh -c '{CORE}'",
    "a user namespace": f"unshare -r --mount sh -c 'mount -o remount,bind,rw /proc/sys; {CORE}'",
    "write /sys": f"mount -o remount,rw /sys; {WRITE.format('/sys/kernel/rcu_expedited')}",
    "a fresh /sys": "mkdir -p /s; mount -t sysfs sysfs /s; "
    f"{WRITE.format('/s/kernel/rcu_expedited')}",
    "make a disk": "rm -f /d; mknod /d b {disk} && echo won; head -c 512 /d | wc -c",
    "make a disk in memory": "mount -o remount,dev /dev/shm; cd /dev/shm; rm -f d; "
    "mknod d b {disk} && echo won",
    "mount the disk": "mkdir -p /m; mount /d /m && echo won; umount /m",
    "make the memory": "rm -f /k; mknod /k c 1 1 && echo won",
    "read the kernel": "head -c 64 /proc/kcore | grep -q ELF && echo won",
    "find a file by its handle": HANDLE,
    "the first process's root": "ls /proc/1/root{file} && echo won",
    "kill a process": "kill -0 {pid} && echo won",
    "trace a process": "ls /proc/{pid}/root/ && echo won",
    "debug the kernel": "mkdir -p /g; mount -t debugfs debugfs /g && ls /g/block && echo won",
    "load a module": MODULE,
    "raise a limit": LIMITS,
}


@pytest.fixture(scope="module")
def rootfs() -> Path:
    kept = os.environ.get("ESSAIM_TEST_CACHE")
    cache = Path(kept) if kept else Path.home() / ".cache" / "essaim-tests"
    return Images(cache / "images").build(BASE, lambda _line: None)


def disk() -> str:
    """The numbers of a disk of this computer."""
    lines = [line.split() for line in Path("/proc/partitions").read_text().splitlines()[2:]]
    there = os.stat("/").st_dev
    own = [os.major(there), os.minor(there)]
    numbers = [[int(line[0]), int(line[1])] for line in lines if not line[3].startswith("loop")]
    if not numbers:
        pytest.skip("no disk here")
    return " ".join(map(str, own if own in numbers else numbers[0]))


def won(it: Lab, name: MachineName) -> list[str]:
    """The attacks that succeed."""
    facts = {"disk": disk(), "pid": os.getpid(), "file": __file__}
    it.run(name, "for tool in mount umount unshare mknod prlimit perl; do command -v $tool; done")
    succeeded = []
    for attack, script in ATTACKS.items():
        for word, value in facts.items():
            script = script.replace(f"{{{word}}}", str(value))  # noqa: PLW2901 - filled in
        if "won" in it.ssh(name, script).stdout:
            succeeded.append(attack)
    return succeeded


def test_root_of_a_machine_gets_nothing_of_the_computer(rootfs, tmp_path):
    with lab(rootfs, tmp_path) as it:
        (name,) = it.up(it.stack(), 1)
        assert won(it, name) == []
        assert "isolation" not in it.seen(name).detail


def test_root_of_a_machine_is_nobody_here_nor_on_another_machine(rootfs, tmp_path):
    with lab(rootfs, tmp_path) as it:
        names = it.up(it.stack(), 1, 2)
        owners = [Path(f"/proc/{pid}").stat().st_uid for pid in it.first_processes("lab")]
        assert len({*owners, 0}) == 3, owners
        for name in names:
            it.run(name, "useradd -m student; su student -c 'touch ~/x'; chmod u+s /usr/bin/id")
            assert it.run(name, "stat -c '%U %u' /home/student/x /etc").split()[::2] == [
                "student",
                "root",
            ]
            assert it.run(name, "su student -c 'ping -c1 -W9 localhost >&2; echo $?'") == "0\n"


def test_a_device_left_by_an_earlier_version_opens_nothing(rootfs, tmp_path):
    """Its machines could make devices: on their disks, and in folders they share."""
    with lab(rootfs, tmp_path) as it:
        stack = it.stack()
        name = it.create(it.machine(stack, 1, shared=("/srv/data",)))
        it.driver.start(name)
        it.await_ssh(name)
        it.run(name, "rm -r /etc/alternatives; mkdir /etc/alternatives; touch /etc/alternatives/x")
        it.crash(stack)
        machine = it.state / stack / "machines" / "m1"
        for folder in (machine / "upper", it.state / stack / "shared" / "srv+data"):
            subprocess.run(["mknod", folder / "device", "c", "1", "8"], check=True)
        # As the overlay of the earlier version has it.
        opaque = machine / "upper" / "etc" / "alternatives"
        os.setxattr(opaque, "trusted.overlay.opaque", os.getxattr(opaque, "user.overlay.opaque"))
        os.removexattr(opaque, "user.overlay.opaque")
        (machine / "marks").unlink()
        (it.state / stack / "devices").unlink()
        it.driver.start(name)
        it.await_ssh(name)
        for path in ("/device", "/srv/data/device"):
            opened = it.ssh(
                name, f"mount -o remount,bind,dev $(dirname {path}); head -c1 {path} && echo won"
            )
            assert "won" not in opened.stdout, path
        assert it.run(name, "ls /etc/alternatives") == "x\n", "what was hidden stays hidden"


ALONE = """
import sys
from pathlib import Path
from drivers.lab import lab
from security.test_sandbox_escape import won
with lab(Path(sys.argv[1]), Path(sys.argv[2])) as it:
    (name,) = it.up(it.stack(), 1)
    assert (got := won(it, name)) == [], got
    assert "root of this computer with fewer capabilities" in it.seen(name).detail["isolation"]
    it.run(name, "useradd -m student; su student -c 'touch ~/x'; ip link show eth0")
"""


def test_where_files_cannot_be_shown_shifted_it_is_said_and_root_has_few_capabilities(
    rootfs, tmp_path
):
    """An overlay is a file system that has no idmapped mounts."""
    script = (
        f"cd {tmp_path}; mkdir upper work image here;"
        f"mount -t overlay -o lowerdir={rootfs},upperdir=upper,workdir=work overlay image"
    )
    changed = ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh"]
    words = [sys.executable, "-W", "error", "-c", ALONE, tmp_path / "image", tmp_path / "here"]
    done = subprocess.run(
        [*changed, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
