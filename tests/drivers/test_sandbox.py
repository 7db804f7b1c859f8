"""What only the sandbox has: a keeper, namespaces, overlays and cgroups."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from drivers.contract import in_process, refuses, succeeded
from drivers.lab import IMAGE, NETWORK, Lab, lab, wait_for
from drivers.plain_user import plain_user
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.errors import RejectedError, SetupError, TransientError
from essaim.model.machines import Power
from essaim.model.names import MachineName

ROOT = Path(__file__).parents[2]


def _revive(it: Lab, name: MachineName) -> None:
    """After the keeper's death all is off, nothing runs, and all can be started again."""
    wait_for(lambda: not it.processes(), "everything has ended with the keeper")
    assert [one.power for one in it.driver.observe(name.stack)] == [Power.OFF]
    assert not it.processes(), "looking has started something"
    it.driver.start(name)
    it.await_ssh(name)
    assert it.run(name, "cat /root/file") == "mine\n"


@pytest.mark.parametrize("victim", ["keeper", "its parent"])
def test_machines_die_with_their_keeper_and_come_back_with_their_disk(it, victim):
    (name,) = it.up(it.stack(), 1)
    it.run(name, "echo mine > /root/file; sleep 600 >/dev/null 2>&1 &")
    machine = it.first_processes("lab")[0]
    keeper = it.keeper("lab")
    parents = [pid for pid in it.processes("keeper.py") if pid != keeper]
    os.kill(keeper if victim == "keeper" else parents[0], signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{machine}").exists(), "the machine has ended")
    _revive(it, name)


def test_a_keeper_told_to_end_ends(it):
    (name,) = it.up(it.stack(), 1)
    it.run(name, "echo mine > /root/file")
    os.kill(it.keeper("lab"), signal.SIGTERM)
    _revive(it, name)


def _insist(it: Lab, stack: str, number: int) -> None:
    while True:
        try:
            it.driver.start(it.create(it.machine(stack, number)))
            return
        except TransientError:
            time.sleep(0.02)


def test_a_keeper_killed_again_and_again_loses_nothing(it):
    stack = it.stack()
    numbers = range(1, 9)
    for number in numbers:
        it.host_key(f"m{number}")

    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            jobs = [pool.submit(_insist, it, stack, number) for number in numbers]
            wait_for(lambda: it.processes("keeper.py"), "a keeper runs")
            for pid in it.processes("keeper.py"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for job in jobs:
                job.result()
    for number in numbers:
        _insist(it, stack, number)
    it.up(stack, *numbers)
    assert len(it.first_processes(stack)) == len(numbers)
    assert os.listdir(it.state) == [stack]


def test_a_keeper_whose_directory_was_deleted_ends(it):
    stack = it.stack()
    it.up(stack, 1, 2)
    shutil.rmtree(it.state / stack)
    wait_for(lambda: not it.processes(), "the keeper has noticed")
    assert {what: left for what, left in it.traces().items() if left} == {}
    it.up(it.stack(), 1)


def test_many_processes_start_one_keeper(it):
    stack = it.stack()
    os.kill(it.keeper(stack), signal.SIGKILL)
    wait_for(lambda: not it.processes(), "the keeper has ended")
    openers = [in_process(lambda: it.driver.open_network(stack, NETWORK)) for _ in range(8)]
    assert all([succeeded(opener) for opener in openers])  # noqa: C419 - each must be waited for
    assert it.keeper(stack)


def test_paths_may_be_long_and_odd(rootfs, tmp_path):
    with lab(rootfs, tmp_path) as it:
        it.state = it.place / ("a path, with: commas and \\ " + "x" * 80) / ("y" * 80)
        it.driver = Sandbox(it.state, lambda _image: rootfs)
        (name,) = it.up(it.stack(), 1)
        assert it.run(name, "hostname") == "m1\n"


def test_half_a_definition_is_no_machine(it):
    stack = it.stack()
    name = it.create(it.machine(stack, 1))
    os.kill(it.keeper(stack), signal.SIGKILL)
    wait_for(lambda: not it.processes(), "the keeper has ended")
    directory = it.state / stack / "machines"
    (directory / "m1" / "machine.json").write_text("{")
    for leftover in (".new-m2", ".gone-m3-1234"):
        (directory / leftover / "upper").mkdir(parents=True)
    assert list(it.driver.observe(stack)) == []
    it.up(stack, 1)
    assert it.run(name, "hostname") == "m1\n"
    wait_for(lambda: os.listdir(directory) == ["m1"], "leftovers are removed")


def test_an_interrupted_removal_is_finished_by_the_next(it):
    locked = it.state / ".gone-old-1-1" / "locked" / "deep"
    locked.mkdir(parents=True)
    locked.chmod(0)
    it.driver.close_network("nowhere")
    assert os.listdir(it.state) == []


def test_a_machine_without_its_image_says_so(it, tmp_path):
    stack = it.stack()
    driver = Sandbox(it.state, lambda _image: tmp_path / "image")
    machine = it.machine(stack, 1)
    refuses(RejectedError, lambda: driver.create(machine, NETWORK, IMAGE, it.seed(machine)))
    (tmp_path / "image").mkdir()
    driver.create(machine, NETWORK, IMAGE, it.seed(machine))
    error = refuses(RejectedError, lambda: driver.start(machine.name))
    assert "its image is not at" in str(error)
    assert error.hint
    assert not it.is_on(machine.name)


def test_a_machine_whose_sshd_fails_is_off_and_tells_why(it):
    (name,) = it.up(it.stack(), 1)
    it.run(name, "echo nonsense >> /etc/ssh/sshd_config")
    it.driver.stop(name)
    it.driver.start(name)
    wait_for(lambda: not it.is_on(name), "it has given up")
    error = refuses(TransientError, lambda: it.driver.dial(name, 22))
    assert "sshd_config: terminating" in str(error)


def test_the_keeper_bears_with_bad_manners(it):
    stack = it.stack()
    it.up(stack, 1)
    directory = os.open(it.state / stack, os.O_PATH)
    for words in (b"nonsense\n", b'{"op": "dance", "name": "m1"}\n', b"{}\n", b"[]\n", b"half"):
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(f"/proc/self/fd/{directory}/keeper.sock")
            conn.sendall(words)
    os.close(directory)
    assert len(it.driver.observe(stack)) == 1


def test_quarrelling_threads_leave_a_machine_that_works(it):
    stack = it.stack()
    (name,) = it.up(stack, 1)
    with ThreadPoolExecutor(12) as pool:
        verbs = [it.driver.start, it.driver.stop] * 12
        for done in [pool.submit(verb, name) for verb in verbs]:
            done.result()
    it.up(stack, 1)
    assert it.run(name, "hostname") == "m1\n"
    assert len(it.first_processes(stack)) == 1


def test_the_way_out_is_closed_and_says_so_at_once(it):
    (name,) = it.up(it.stack(), 1)
    assert it.run(name, "ip route get 192.0.2.1 | head -1").startswith("192.0.2.1 via 10.77.0.1")
    unreachable = "ping -c1 -W60 192.0.2.1 | grep -ci unreachable"
    assert it.run(name, unreachable) == "1\n"
    assert it.ssh(name, "getent hosts example.org").returncode == 2


def test_users_inside_have_a_terminal_and_shared_memory(it):
    (name,) = it.up(it.stack(), 1)
    it.run(name, "useradd -m -p '*' student && su student -c 'echo x > /dev/shm/x; : > /tmp/x'")
    assert it.run(name, "script -qc tty /dev/null").strip() == "/dev/pts/0"
    assert it.run(name, "stat -c %G /dev/pts/ptmx /dev/shm/x") == "root\nstudent\n"


def test_an_unwritable_place_is_a_matter_of_setup(it):
    blocked = it.place / "file"
    blocked.touch()
    driver = Sandbox(blocked / "state", lambda _image: it.rootfs)
    refuses(SetupError, lambda: driver.open_network("lab", NETWORK))


def test_the_doctor_finds_nothing_wrong(it):
    assert [check for check in it.driver.doctor() if not check.ok] == []


@pytest.mark.root
def test_the_doctor_finds_nothing_wrong_for_a_plain_user(somebody):
    program = (
        "from essaim.drivers.sandbox.doctor import doctor; import sys;"
        "sys.exit([check for check in doctor() if not check.ok] or 0)"
    )
    done = somebody.run_python("-c", program)
    assert done.returncode == 0, done.stderr


OPEN = """
import sys
import time
from pathlib import Path
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.errors import SetupError
from essaim.model.stacks import Network
driver = Sandbox(Path.home() / "state", lambda _: Path("/"))
try:
    driver.open_network("s", Network(cidr="10.1.0.0/24"))
except SetupError as error:
    sys.exit(error.hint)
"""


@pytest.mark.root
def test_without_subordinate_ids_the_remedy_is_named(somebody):
    with plain_user("-poor") as poor:
        for option in ("--del-subuids", "--del-subgids"):
            ranges = Path(f"/etc/{option[6:-1]}").read_text()
            line = next(one for one in ranges.splitlines() if one.startswith(f"{poor.name}:"))
            _, first, count = line.split(":")
            span = f"{first}-{int(first) + int(count) - 1}"
            subprocess.run(["usermod", option, span, poor.name], check=True)
        done = poor.run_python("-c", OPEN)
    assert done.stderr.strip().startswith("sudo usermod --add-subuids"), done.stderr
    assert done.stderr.strip().endswith(poor.name)


@pytest.mark.root
def test_without_newuidmap_the_remedy_is_named(somebody):
    script = 'mount --bind /dev/null /usr/bin/newuidmap; exec "$@"'
    hidden = ["unshare", "--mount", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*hidden, *somebody.command(somebody.python, "-c", OPEN)],
        env=somebody.env,
        cwd=somebody.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "sudo apt-get install uidmap"


def _in_mount_namespace(script: str, program: str, *words: str) -> str:
    """Run Python where `script` has changed the mounts for it alone."""
    changed = ["unshare", "--mount", "sh", "-ec", f'{script}; exec "$@"', "sh"]
    done = subprocess.run(
        [*changed, sys.executable, "-W", "error", "-c", program, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


IN_MEMORY = """
import sys
import time
from pathlib import Path
from drivers.lab import lab, wait_for
with lab(Path(sys.argv[1]), Path(sys.argv[2])) as it:
    (name,) = it.up(it.stack(), 1)
    it.run(name, "echo mine > /root/file; rm -r /etc/alternatives; mkdir /etc/alternatives")
    assert "in memory" in it.seen(name).detail["disk"]
    it.driver.stop(name)
    it.driver.start(name)
    it.await_ssh(name)
    assert it.run(name, "cat /root/file; ls /etc/alternatives") == "mine\\n"
    import os, signal
    os.kill(it.keeper("lab"), signal.SIGKILL)
    wait_for(lambda: not it.processes(), "the keeper has ended")
    it.up("lab", 1)
    assert it.ssh(name, "cat /root/file").returncode == 1
    it.driver.close_network("lab")
    assert not any(it.traces().values())
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_where_no_overlay_can_be_the_disk_is_in_memory(rootfs, tmp_path):
    mount = (
        f"cd {tmp_path}; mkdir lower upper work here;"
        "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay here"
    )
    _in_mount_namespace(mount, IN_MEMORY, str(rootfs), str(tmp_path / "here"))


FULL = """
import sys
import time
from pathlib import Path
from drivers.contract import refuses
from drivers.lab import lab
from essaim.model.errors import SetupError
with lab(Path(sys.argv[1]), Path(sys.argv[2])) as it:
    stack = it.stack()
    it.host_key("m1")
    filler = Path(sys.argv[2], "filler")
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    refuses(SetupError, lambda: it.create(it.machine(stack, 1)))
    filler.unlink()
    (name,) = it.up(stack, 1)
    assert it.run(name, "getent hosts m1 | cut -d' ' -f1") == "10.77.0.11\\n"
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_full_disk_is_a_matter_of_setup_and_can_be_put_right(rootfs, tmp_path):
    mount = f"mount -t tmpfs -o size=4m tmpfs {tmp_path}"
    _in_mount_namespace(mount, FULL, str(rootfs), str(tmp_path))


def _has_v1(controller: str) -> bool:
    return os.access(f"/sys/fs/cgroup/{controller}/cgroup.procs", os.W_OK)


@pytest.mark.root
@pytest.mark.skipif(not _has_v1("memory"), reason="this computer has no cgroups of version 1")
def test_root_s_machines_have_their_own_cgroups(it):
    stack = it.stack()
    (name,) = it.up(stack, 1)
    inside = "/sys/fs/cgroup"
    assert it.run(name, f"cat {inside}/memory/memory.limit_in_bytes") == f"{256 << 20}\n"
    assert it.run(name, "grep -c -v ':/$' /proc/self/cgroup || true") == "0\n"
    it.run(name, f"mkdir -p {inside}/freezer/job/step {inside}/cpuset/job")
    group = f"{stack}-{it.cgroup_mark(stack)}/m1"
    assert Path("/sys/fs/cgroup/freezer/essaim", group, "job/step").exists()
    it.driver.stop(name)
    assert not Path("/sys/fs/cgroup/freezer/essaim", group).exists()
    it.driver.start(name)
    it.await_ssh(name)
    it.driver.destroy(name)
    assert not list(Path("/sys/fs/cgroup").glob(f"*/essaim/{group}"))


UNIFIED = """
import sys
import time
from pathlib import Path
from drivers.lab import lab
with lab(Path(sys.argv[1]), Path(sys.argv[2])) as it:
    (name,) = it.up(it.stack(), 1)
    offered = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert ("limits" in it.seen(name).detail) == ("memory" not in offered), "said where it is not"
    assert it.run(name, "cat /sys/fs/cgroup/cgroup.procs; grep ^0: /proc/1/cgroup") >= "1"
    it.run(name, "mkdir /sys/fs/cgroup/job")
    group = Path("/sys/fs/cgroup/essaim", f"lab-{it.cgroup_mark('lab')}", "m1")
    assert list(group.glob("**/job")), "in the group that holds its limits, or in one below"
    it.driver.stop(name)
    assert not group.exists()
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_one_cgroup_tree_for_all_controllers_will_do(rootfs, tmp_path):
    mount = "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    _in_mount_namespace(mount, UNIFIED, str(rootfs), str(tmp_path))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a plain user could not anyway")
def test_root_s_machines_cannot_reach_the_computer_by_accident(it):
    (name,) = it.up(it.stack(), 1)
    bounding = int(it.run(name, "sed -n 's/^CapBnd:\\t//p' /proc/self/status"), 16)
    assert not bounding & (1 << 16 | 1 << 17 | 1 << 25), "modules, raw ports, the clock"
    assert it.ssh(name, "echo x > /proc/sys/kernel/hostname").returncode != 0
    it.run(name, "echo 2048 > /proc/sys/net/core/somaxconn")


def test_machines_reach_whoever_listens_on_their_network(it):
    (name,) = it.up(it.stack(), 1)
    with it.driver.listen(name.stack, 8000) as listener:
        gateway = listener.getsockname()[0]
        asking = (
            f"import socket; s = socket.create_connection(('{gateway}', 8000)); print(s.recv(9))"
        )
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(it.run, name, f'python3 -c "{asking}"')
            conn, (address, _port) = listener.accept()
            with conn:
                conn.sendall(b"welcome")
            assert "welcome" in answer.result()
    assert address == "10.77.0.11"
