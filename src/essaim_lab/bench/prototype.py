"""The least that makes machines: a shell script with `ip`, `unshare`, an overlay and `sshd`.

It keeps no journal, checks nothing and can neither go on nor change anything: a lower bound for
what the same machines cost.  All of it happens in namespaces that end with it: nothing is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from essaim_lab.bench.rows import Peer
from essaim_lab.bench.timing import Measured, timed

NAME = "shell script, 8 at once"
_TOOLS = ("ip", "nsenter", "unshare", "ssh", "ssh-keygen", "xargs", "setsid")

_ALL = """\
# Started by `unshare`: these mounts, this network and every process here end with it.
set -eu
mount -t tmpfs tmpfs /run
mkdir /run/netns /run/machines
ip link set lo up
ip link add br0 type bridge
ip addr add 10.79.0.1/16 dev br0
ip link set br0 up
free() { sed -n 's/^MemAvailable: *\\([0-9]*\\).*/\\1/p' /proc/meminfo; }
now() { cut -d' ' -f1 /proc/uptime; }
before=$(free)
began=$(now)
seq 1 "$COUNT" | xargs -P 8 -n 1 sh "$HERE/one.sh"
echo "seconds $began $(now)"
echo "kib $before $(free)"
"""

_ONE = """\
set -eu
address=10.79.$((($1 + 1) / 250)).$((($1 + 1) % 250 + 2))
ip netns add "m$1"
ip link add "v$1" type veth peer name eth0 netns "m$1"
ip link set "v$1" master br0 up
ip -n "m$1" addr add "$address/16" dev eth0
ip -n "m$1" link set eth0 up
setsid nsenter --net="/run/netns/m$1" \\
  unshare --mount --pid --uts --ipc --fork --kill-child sh "$HERE/init.sh" "$1" \\
  </dev/null >"$HERE/m$1.log" 2>&1 &
tries=0
until ssh -F none -i "$HERE/key" -o BatchMode=yes -o KexAlgorithms=curve25519-sha256 \\
  -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=QUIET \\
  -o ConnectTimeout=5 "root@$address" true </dev/null; do
  tries=$((tries + 1))
  [ "$tries" -lt 200 ] || { cat "$HERE/m$1.log" >&2; exit 255; }
  sleep 0.05
done
"""

_INIT = """\
set -eu
disk=/run/machines/$1
mkdir -p "$disk/upper" "$disk/work" "$disk/root"
mount -t overlay overlay \\
  -o "lowerdir=$ROOTFS,upperdir=$disk/upper,workdir=$disk/work" "$disk/root"
cd "$disk/root"
mount -t proc proc proc
for place in run tmp dev; do mount -t tmpfs tmpfs "$place"; done
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
mkdir dev/pts run/sshd old
mount -t devpts devpts dev/pts -o newinstance,ptmxmode=0666
ln -s pts/ptmx dev/ptmx
hostname "m$1"
mkdir -p -m 700 root/.ssh
cp "$HERE/key.pub" root/.ssh/authorized_keys
ssh-keygen -q -t ed25519 -N '' -f etc/ssh/ssh_host_ed25519_key
pivot_root . old
exec chroot . sh -c 'umount -l /old && exec /usr/sbin/sshd -D -e -o UsePAM=no -o UseDNS=no'
"""


def raise_machines(count: int, rootfs: Path) -> tuple[Peer, Peer]:
    """Raise `count` machines until each has answered an authenticated command, then drop them.

    Gives the seconds that took, and the megabytes of memory each machine cost the computer.
    """
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or lacking:
        why = f"not here: {' '.join(lacking)}" if lacking else "not here: needs root"
        return Peer(name=NAME, note=why), Peer(name=NAME, note=why)
    with tempfile.TemporaryDirectory(prefix="essaim-prototype-") as name:
        done = _run(Path(name), count, rootfs)
    return _read(done, count)


def _run(here: Path, count: int, rootfs: Path) -> Measured:
    for file, text in (("all.sh", _ALL), ("one.sh", _ONE), ("init.sh", _INIT)):
        (here / file).write_text(text)
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(here / "key")]
    subprocess.run(key, check=True)
    environ = {**os.environ, "HERE": str(here), "COUNT": str(count), "ROOTFS": str(rootfs)}
    spaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return timed(["unshare", *spaces, "sh", here / "all.sh"], environ=environ, within=240)


def _read(done: Measured, count: int) -> tuple[Peer, Peer]:
    words = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.strip()}
    if done.code != 0 or not {"seconds", "kib"} <= words.keys():
        why = (done.err.strip().splitlines() or [f"ended {done.code}"])[-1]
        failed = Peer(name=NAME, note=f"failed: {why}"[:60], command=done.command)
        return failed, failed
    began, ended = map(float, words["seconds"])
    before, after = map(int, words["kib"])
    return (
        Peer(name=NAME, value=ended - began, command=done.command),
        Peer(name=NAME, value=(before - after) * 1024 / 1e6 / count, command=done.command),
    )
