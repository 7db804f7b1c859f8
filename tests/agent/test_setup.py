"""Install and uninstall leave nothing behind."""

from __future__ import annotations

import os
import time

import pytest

from agent.worker import until, worker
from essaim.agent import source
from essaim.model.errors import EssaimError
from essaim.remote.keyring import Keyring

# Everything there is, but for what every command changes.
EVERYTHING = (
    "find / -xdev -path /proc -prune -o -path /root/agent.py -prune -o -path /var/log -prune "
    "-o ! -name '*-' -type f -printf '%p %m %U %s\\n' "
    "-o -type d -printf '%p %m %U\\n' | sort; ls -A /var/log /run; getent passwd; getent group"
)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A machine that was never prepared: without what the image brings."""
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path_factory.mktemp("fresh")) as box:
        box.put("/root/agent.py", source().encode())
        written = "test -s /run/sshd.pid && stat -c %z /run/sshd.pid"
        before = box.sh(written).stdout
        box.sh("rm /etc/ssh/sshd_config.d/essaim.conf; kill -HUP $(cat /run/sshd.pid)")
        # It removes the file, then listens anew, then writes it again.
        until(lambda: box.sh(written, ok=False).stdout not in ("", before))
        until(lambda: b"SSH" in banner(box))
        box.sh("mkdir -p /etc/security/limits.d")
        box.sh("runuser -u nobody -- sudo -n true || :")  # sudo keeps a folder of its own
        yield box


def banner(box):
    try:
        with box.driver.dial(box.root.name, 22) as connection:
            connection.settimeout(10)
            return connection.recv(4)
    except (OSError, EssaimError):
        return b""


def refused(box, sentence):
    """Installing says what is wrong in a sentence."""
    done = box.sh("python3 -I /root/agent.py install", ok=False)
    assert done.exit_code == 1
    assert sentence in done.output
    assert "Traceback" not in done.output


@pytest.mark.root
def test_install_and_uninstall_leave_nothing(fresh, tmp_path):
    """By a list of all files, users and groups before and after.  R-D1."""
    box = fresh
    before = box.sh(EVERYTHING).stdout
    box.install()
    one, began = box.sh(EVERYTHING).stdout, box.sh("stat -c %z /run/sshd.pid").stdout
    assert one != before
    box.install()
    # Again changes nothing, and the SSH server is left alone.
    assert box.sh(EVERYTHING).stdout == one
    assert box.sh("stat -c %z /run/sshd.pid").stdout == began
    done = box.sh("su -s /bin/sh essaim -c 'sudo -n /usr/local/lib/essaim/helper list'")
    assert '"ok": true' in done.stdout
    for forbidden in ("true", "/bin/sh", "/usr/local/lib/essaim/agent.py"):
        assert box.sh(f"su essaim -c 'sudo -n {forbidden}'", ok=False).exit_code != 0
    assert box.sh("stat -c '%U %a' /usr/local/lib/essaim/*").stdout.split() == (["root", "755"] * 4)
    request = {
        "account": "l-left1",
        "keys": [box.keyring.user_public_key()],
        "expires_at": int(time.time()) + 600,
    }
    assert box.helper("create", request)["ok"]
    # The SSH server has read its new rules without having been stopped.
    mine = Keyring(tmp_path)
    put = "mkdir -m 700 .ssh; echo $(cat) >.ssh/authorized_keys"
    assert box.ssh("l-left1", f"echo {mine.user_public_key()} | ({put})").returncode == 0
    assert "Permission denied" in box.ssh("l-left1", "true", key=mine.user_key()).stderr
    box.helper("message", {"account": "l-left1", "text": "hello"})
    box.remote.drop(box.service.name)
    box.sh("setsid runuser -u essaim -- sleep 1000 >/dev/null 2>&1 </dev/null &")
    until(lambda: box.sh("pgrep -u essaim sleep", ok=False).exit_code == 0)
    assert "all it made are gone" in box.sh("python3 -I /root/agent.py uninstall").output
    # It was killed; whoever started it may take a moment to look.
    until(lambda: box.sh("pgrep -x sleep", ok=False).exit_code == 1)
    assert box.sh(EVERYTHING).stdout == before
    box.sh("python3 -I /root/agent.py uninstall")
    assert box.sh(EVERYTHING).stdout == before


@pytest.mark.root
@pytest.mark.parametrize(
    ("breaking", "mending", "sentence"),
    [
        (
            "mv /usr/bin/sudo /root/kept",
            "mv /root/kept /usr/bin/sudo",
            "the program sudo is missing on this machine: install it first",
        ),
        (
            "mv /usr/sbin/sshd /root/kept",
            "mv /root/kept /usr/sbin/sshd",
            "the program sshd is missing on this machine: install it first",
        ),
        (
            "cp -p /etc/ssh/sshd_config /root/kept; sed -i /^Include/d /etc/ssh/sshd_config",
            "mv /root/kept /etc/ssh/sshd_config",
            "put `Include /etc/ssh/sshd_config.d/*.conf` on top of /etc/ssh/sshd_config",
        ),
        (
            "printf 'Match all\nAuthorizedKeysFile .ssh/more\n' >/etc/ssh/sshd_config.d/a.conf",
            "rm /etc/ssh/sshd_config.d/a.conf",
            "does not take /etc/ssh/sshd_config.d/essaim.conf into account",
        ),
        ("useradd -M l-anna", "userdel l-anna", "the user l-anna"),
        ("useradd -M -u 61050 anna", "userdel anna", "the user anna (uid 61050)"),
    ],
)
def test_a_machine_that_cannot_be_lent_safely_is_refused(fresh, breaking, mending, sentence):
    fresh.sh(breaking)
    try:
        refused(fresh, sentence)
        fresh.sh("test ! -e /etc/ssh/sshd_config.d/essaim.conf")
    finally:
        fresh.sh(mending)
        fresh.sh("python3 -I /root/agent.py uninstall")


# Answers as systemd does, and remembers what it was told.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>/root/told
"""


@pytest.mark.root
def test_it_is_a_service_where_there_is_systemd_and_a_command_elsewhere(fresh):
    said = fresh.sh("python3 -I /root/agent.py install").output
    command = "runuser -u essaim -- python3 -I /usr/local/lib/essaim/agent.py run"
    assert f"start: {command}" in said
    done = fresh.sh(command, ok=False)
    assert done.exit_code == 3
    assert "has not joined a fleet" in done.output
    fresh.put("/usr/local/bin/systemctl", SYSTEMCTL.encode())
    fresh.sh("chmod 755 /usr/local/bin/systemctl; mkdir -p /run/systemd/system /etc/systemd/system")
    unit = "/etc/systemd/system/essaim-agent.service"
    try:
        said = fresh.sh("python3 -I /root/agent.py install").output
        assert "systemctl start essaim-agent.service" in said
        text = fresh.sh(f"cat {unit}").stdout
        assert "User=essaim\n" in text
        assert f"ExecStart=/usr/bin/env {command.partition('-- ')[2]}\n" in text
        # After exit code 3, which says that the server refuses it, it is not started again.
        assert "RestartPreventExitStatus=3" in text
        fresh.sh("python3 -I /root/agent.py uninstall")
        told = fresh.sh("cat /root/told").stdout
        assert "enable essaim-agent.service" in told
        assert "disable --now essaim-agent.service" in told
        fresh.sh(f"test ! -e {unit}")
    finally:
        fresh.sh("rm -rf /usr/local/bin/systemctl /root/told /run/systemd/system")


@pytest.mark.root
def test_uninstall_says_what_it_cannot_remove(fresh):
    fresh.install()
    fresh.sh(
        "mkdir -p /srv/fixed; touch /srv/fixed/x; chown 61007 /srv/fixed/x; "
        "mount --bind /srv/fixed /srv/fixed; mount -o remount,bind,ro /srv/fixed"
    )
    fresh.remote.drop(fresh.service.name)
    try:
        done = fresh.sh("python3 -I /root/agent.py uninstall", ok=False)
        assert done.exit_code == 1
        assert "this is left of leases: file /srv/fixed/x" in done.output
    finally:
        fresh.sh("umount /srv/fixed; rm -r /srv/fixed")
    assert "are gone" in fresh.sh("python3 -I /root/agent.py uninstall").output


SERVER = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = {"node_id": "n-7", "credential": "c", "server_public_key": KEY, "interval": 0.2}
        answer = json.dumps(given if self.path.endswith("register") else {}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)
        with open("/root/told", "a") as told:
            print(json.dumps([self.path, body]), file=told)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.mark.root
def test_joining_as_root_installs_then_runs_as_the_service(tmp_path):
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path) as box:
        key = box.keyring.user_public_key()
        box.put("/root/server.py", f"KEY = {key!r}\n{SERVER}".encode())
        box.put("/root/agent.py", source().encode())
        quiet = ">/root/out 2>&1 </dev/null &"
        join = "python3 -I /root/agent.py join --server http://127.0.0.1:8000 --token t"
        box.sh(f"setsid python3 /root/server.py {quiet}")
        until(lambda: box.sh("ss -ltn | grep -q :8000", ok=False).exit_code == 0)
        box.sh(f"setsid {join} {quiet}")
        until(lambda: box.sh("grep -c heartbeat /root/told", ok=False).stdout.strip() > "1")
        # But for the helper now and then, all of it is the service's; the other one is the server.
        users = "ps -o user= -C python3 | sort | uniq -c"
        until(lambda: box.sh(users).stdout.split() == ["1", "essaim", "1", "root"])
        # The key that the server gave lets the control plane in.
        assert box.helper("list", {})["ok"]
        request = {"account": "l-over1", "keys": [key], "expires_at": int(time.time()) - 1}
        assert box.helper("create", request)["ok"]
        pid = box.sh("pgrep -u essaim -f 'agent.py join'").stdout.split()[0]
        box.sh(f"kill {pid}")
        until(lambda: box.sh(f"kill -0 {pid}", ok=False).exit_code != 0)
        # A machine that the server cannot reach ends its leases by itself.
        box.sh("kill $(pgrep -f /root/server.py)")
        box.sh(f"setsid python3 -I /usr/local/lib/essaim/agent.py run {quiet}")
        until(lambda: box.helper("list", {})["accounts"] == [])
        assert "node n-7" in box.sh("python3 -I /usr/local/lib/essaim/agent.py status").stdout


def test_without_root_it_says_so(tmp_path, monkeypatch):
    from essaim.agent import setup
    from essaim.agent.common import Trouble

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in (setup.install, setup.uninstall):
        with pytest.raises(Trouble, match=r"needs root: sudo python3 agent\.py"):
            verb()
