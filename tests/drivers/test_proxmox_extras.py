"""What the API lacks, done over SSH on a sandbox machine that plays the node."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from drivers.lab import NETWORK
from essaim.drivers.proxmox import wishes
from essaim.drivers.proxmox.cluster import Guest
from essaim.drivers.proxmox.extras import NodeExtras, _agent_said
from essaim.drivers.proxmox.guests import Wanted
from essaim.drivers.proxmox.settings import Settings, Ssh
from essaim.model.errors import RejectedError, TransientError
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Size

# Not from 100000 on, as is usual: the sandbox machine that plays the node has ids below 65536.
EXTRAS = {
    "idmap": ["u 0 20000 40000", "g 0 20000 40000", "u 600000000 600000000 999999999"],
    "mounts": [{"source": "/mnt/nfs/home/{login}", "target": "home/{login}"}],
    "hooks": {"mount": "echo $ESSAIM_LOGIN > $LXC_ROOTFS_MOUNT/etc/owner", "start": "exit 0\n"},
}
CONF = """\
#CT of alice
arch: amd64
hostname: vm-alice
unprivileged: 1

[before]
arch: amd64
snaptime: 1
"""
GUEST = Guest(id=50003, kind="lxc", node="pve1")


def wanted(extras=EXTRAS, host_key="none", **labels: str) -> Wanted:
    machine = Machine(
        name=MachineName("promo", "alice"),
        group="m",
        index=1,
        address="10.77.0.11",
        image="gui",
        size=Size(cores=1, memory=256),
        labels={"login": "alice", **labels},
    )
    return Wanted(
        machine=machine,
        network=NETWORK,
        image=Image(name="gui", builder="template", digest="d", settings={"extras": extras}),
        seed=Seed(hostname="vm-alice", host_key=host_key, authorized_keys=("ssh-ed25519 AAAA a",)),
        id=50003,
        card="bc:24:11:00:00:01",
    )


@pytest.mark.parametrize(
    "extras",
    [
        {"idmap": ["u 0 100000 65536\nlxc.hook.start: /bin/sh"]},
        {"idmap": ["x 0 1 2"]},
        {"mounts": [{"source": "/a b", "target": "c"}]},
        {"mounts": [{"source": "/a/../../etc", "target": "c"}]},
        {"mounts": [{"source": "/{nobody}", "target": "c"}]},
        {"mounts": ["/a"]},
        {"hook": {}},
        {"hooks": {"stop": "exit 0"}},
        {"hooks": {"start": {"file": "start.sh"}}},
        {"values": {"Not a name": "x"}},
        {"values": ["a"]},
    ],
)
def test_what_could_not_be_written_safely_is_refused(extras):  # R-B5
    with pytest.raises(RejectedError):
        wishes.read(wanted(extras), 50003)


def test_what_a_label_says_is_never_part_of_a_script():  # R-B5
    bad = "$(touch /tmp/x)'; \n rm -rf /"
    found = wishes.read(wanted({"hooks": EXTRAS["hooks"]}, room=bad), 50003)
    assert found.files["own"][0] == EXTRAS["hooks"]["mount"].encode()
    assert found.files["values"][0].count(b"\n") == 7  # one line of a value goes on in the next
    assert b"ESSAIM_ROOM='$(touch /tmp/x)'\"'\"'; \n rm -rf /'" in found.files["values"][0]
    with pytest.raises(RejectedError):
        wishes.read(wanted(EXTRAS, login=bad), 50003)


def test_scripts_are_told_what_the_image_says_and_first_what_the_machine_is():  # R-B5
    values = {"directory_uri": "ldaps://x", "login": "mallory", "min_id": 600000000}
    found = wishes.read(wanted({"values": values, "hooks": {"start": "exit 0"}}), 50003)
    lines = found.files["root/var/lib/essaim/values"][0].decode().splitlines()
    assert "ESSAIM_DIRECTORY_URI=ldaps://x" in lines
    assert "ESSAIM_MIN_ID=600000000" in lines
    assert "ESSAIM_LOGIN=alice" in lines


@pytest.mark.parametrize("where", ["root", "root/.ssh", "var/lib/essaim"])
def test_a_link_in_a_container_does_not_lead_out_of_it(tmp_path, where):  # R-B5
    """Whoever is root in a container may have put links where its hooks write."""
    here, root, others = tmp_path / "node", tmp_path / "ct", tmp_path / "others"
    found = wishes.read(wanted({"hooks": {"start": "exit 0"}}), 50003)
    for name, (body, mode) in found.files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(body)
        (here / name).chmod(mode)
    others.mkdir()
    (root / where).parent.mkdir(parents=True)
    (root / where).symlink_to(others)
    hook = [str(here / "mount")]
    environ = {"PATH": os.environ["PATH"], "LXC_ROOTFS_MOUNT": str(root)}
    done = subprocess.run(hook, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"/{where} of the container is a symbolic link" in done.stderr
    assert list(others.iterdir()) == []


def test_a_linked_file_in_a_container_is_replaced_not_written_through(tmp_path):  # R-B5
    here, root, other = tmp_path / "node", tmp_path / "ct", tmp_path / "other"
    for name, (body, mode) in wishes.read(wanted({}), 50003).files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(body)
        (here / name).chmod(mode)
    (root / "root/.ssh").mkdir(parents=True)
    (root / "root/.ssh/authorized_keys").symlink_to(other)
    environ = {"PATH": os.environ["PATH"], "LXC_ROOTFS_MOUNT": str(root)}
    subprocess.run([str(here / "mount")], env=environ, check=True)
    assert not other.exists()
    assert (root / "root/.ssh/authorized_keys").read_text() == "ssh-ed25519 AAAA a\n"


@pytest.fixture
def node(it):
    """A machine that looks like a node, as far as these extras look at it."""
    (name,) = it.up(it.stack(), 1)
    it.run(
        name, f"mkdir -p /etc/pve/lxc /run/lock/lxc; cat > /etc/pve/lxc/50003.conf <<'E'\n{CONF}E"
    )
    return name


@pytest.fixture
def extras(it, node):
    ssh = Ssh(
        key=str(it.key),
        host_keys={"pve1": it.host_key("m1").with_suffix(".pub").read_text()},
    )
    settings = Settings(
        site="pve", urls=("https://x",), secret={}, ids=(50000, 50099), snippets="local", ssh=ssh
    )
    made = NodeExtras(settings, ssh, dial=lambda _node: it.driver.dial(node, 22))
    yield made
    made.close()


@pytest.mark.root
def test_they_are_written_once_and_undone_without_a_trace(it, node, extras):  # R-B5
    key = it.host_key("m1").read_text()
    before = it.run(node, "cat /etc/pve/lxc/50003.conf; ls /etc/pve/lxc")
    for _ in range(2):
        assert extras.apply(GUEST, wanted(host_key=key)) == {}
        conf = it.run(node, "cat /etc/pve/lxc/50003.conf")
        block, _, rest = conf.partition("[before]")
        lines = block.splitlines()
        first, last = lines.index(wishes.BEGIN), lines.index(wishes.END)
        assert lines[first + 1 : last] == [
            "lxc.idmap: u 0 20000 40000",
            "lxc.idmap: g 0 20000 40000",
            "lxc.idmap: u 600000000 600000000 999999999",
            "lxc.mount.entry: /mnt/nfs/home/alice home/alice none bind,create=dir 0 0",
            "lxc.hook.mount: /var/lib/essaim/lxc/50003/mount",
            "lxc.hook.start: /var/lib/essaim/start",
        ]
        assert conf.count("ESSAIM_EXTRAS") == 2
        assert rest == "\narch: amd64\nsnaptime: 1\n"
    where = "/var/lib/essaim/lxc"
    assert it.run(node, f"stat -c '%a %u' {where}/50003 {where}/50003/mount") == (
        "700 20000\n700 20000\n"
    )
    assert it.run(node, f"ls -A {where}") == "50003\n"
    # The hook itself: what a container's root file system gets from it.
    run = f"mkdir -p /tmp/root/etc; LXC_ROOTFS_MOUNT=/tmp/root {where}/50003/mount"
    it.run(node, run)
    assert it.run(node, "cat /tmp/root/etc/owner /tmp/root/root/.ssh/authorized_keys") == (
        "alice\nssh-ed25519 AAAA a\n"
    )
    assert it.run(node, "cat /tmp/root/etc/ssh/ssh_host_ed25519_key") == key
    assert it.run(node, "stat -c %a /tmp/root/etc/ssh/ssh_host_ed25519_key") == "600\n"
    for _ in range(2):
        extras.undo(GUEST)
        assert it.run(node, "cat /etc/pve/lxc/50003.conf; ls /etc/pve/lxc") == before
        assert it.run(node, f"ls -A {where}") == ""


@pytest.mark.root
def test_a_container_that_is_gone_a_node_that_is_unknown_and_a_wrong_key(it, node, extras):  # R-B5
    gone = replace(GUEST, id=50009)
    with pytest.raises(TransientError, match=r"there is no /etc/pve/lxc/50009\.conf"):
        extras.apply(gone, wanted())
    assert it.run(node, "ls -A /var/lib/essaim/lxc") in ("", "50009\n")
    extras.undo(gone)
    assert it.run(node, "ls -A /var/lib/essaim/lxc /etc/pve/lxc") == (
        "/etc/pve/lxc:\n50003.conf\n\n/var/lib/essaim/lxc:\n"
    )
    with pytest.raises(RejectedError, match="host key of node pve2 is not known"):
        extras.apply(replace(GUEST, node="pve2"), wanted())
    other = it.new_key("other").with_suffix(".pub").read_text()
    ssh = Ssh(key=str(it.key), host_keys={"pve1": other})
    settings = Settings(site="pve", urls=("x",), secret={}, ids=(1, 2), ssh=ssh)
    wrong = NodeExtras(settings, ssh, dial=lambda _node: it.driver.dial(node, 22))
    with pytest.raises(RejectedError):
        wrong.apply(GUEST, wanted())
    wrong.close()


#: Takes the lock off as Proxmox VE's own does, and nothing else.
PCT = """#!/bin/sh
[ "$#" = 2 ] && [ "$1" = unlock ] || { echo "400 too many arguments" >&2; exit 255; }
[ -e "/etc/pve/lxc/$2.conf" ] || { echo "Configuration file 'lxc/$2.conf' does not exist" >&2
exit 2; }
sed -i "/^lock:/d" "/etc/pve/lxc/$2.conf"
"""


@pytest.mark.root
def test_a_lock_is_taken_off_on_the_node(it, node, extras):  # R-B2
    it.run(
        node,
        f"cat > /usr/local/bin/pct <<'E'\n{PCT}E\nchmod +x /usr/local/bin/pct\n"
        "sed -i '1i lock: create' /etc/pve/lxc/50003.conf",
    )
    for _ in range(2):
        extras.unlock(GUEST)
        assert it.run(node, "cat /etc/pve/lxc/50003.conf") == CONF
    with pytest.raises(TransientError, match=r"extras of 50009: .*50009\.conf' does not exist"):
        extras.unlock(replace(GUEST, id=50009))


@pytest.mark.root
def test_a_virtual_machine_gets_its_identity_as_a_snippet(it, node, extras):  # R-B5
    it.run(
        node,
        "cd /usr/local/bin && printf '%s\\n' '#!/bin/sh' "
        "'echo /var/lib/vz/snippets/${2##*/}' > pvesm && chmod +x pvesm",
    )
    guest = replace(GUEST, kind="qemu")
    told = extras.apply(guest, wanted(host_key=it.host_key("m1").read_text()))
    assert told == {"cicustom": "user=local:snippets/essaim-50003.yaml"}
    text = it.run(node, "cat /var/lib/vz/snippets/essaim-50003.yaml")
    assert text.startswith("#cloud-config\n")
    assert "ssh-ed25519 AAAA a" in text
    assert it.run(node, "stat -c %a /var/lib/vz/snippets/essaim-50003.yaml") == "600\n"
    extras.undo(guest)
    assert it.run(node, "ls /var/lib/vz/snippets") == ""


#: Play the programs of a node whose guests are the node itself: real ones need a Proxmox VE.
GUEST_PCT = r"""#!/bin/sh
[ "$1 $2 $3" = "exec 50003 --" ] || { echo "Configuration file 'lxc/$2.conf' does not exist" >&2
exit 2; }
shift 3; exec "$@"
"""
GUEST_QM = r"""#!/bin/sh
[ "$1 $2 $3 $4 $6" = "guest exec 50003 --timeout --" ] ||
  { echo "QEMU guest agent is not running" >&2; exit 255; }
shift 6
out=$("$@" 2>/dev/null); code=$?
printf '{"exitcode":%s,"exited":1,"out-data":"%s\\n"}\n' "$code" "$out"
"""


@pytest.mark.root
@pytest.mark.parametrize("kind", ["lxc", "qemu"])
def test_a_command_is_run_inside_a_guest_word_by_word(it, node, extras, kind):
    for program, text in (("pct", GUEST_PCT), ("qm", GUEST_QM)):
        it.run(node, f"cd /usr/local/bin; cat > {program} <<'E'\n{text}E\nchmod +x {program}")
    guest = replace(GUEST, kind=kind)
    done = extras.execute(guest, ["sh", "-c", 'echo "$2-$1"; exit 3', "essaim", "a b", "$(id)"])
    assert (done.exit_code, done.output) == (3, "$(id)-a b\n")
    gone = extras.execute(replace(guest, id=50009), ["true"])
    assert gone.exit_code
    assert "does not exist" in gone.output or "not running" in gone.output


def test_an_agent_that_says_nothing_of_use_is_asked_again():
    assert _agent_said(GUEST, '{"exitcode": 1, "err-data": "no"}').output == "no"
    for text in ("", "[]", '{"pid": 7}', "null"):
        with pytest.raises(TransientError, match="has not ended the command"):
            _agent_said(GUEST, text)
