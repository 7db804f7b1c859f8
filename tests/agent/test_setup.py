"""Install and uninstall leave nothing behind."""

from __future__ import annotations

import os
import time

import pytest

from agent.worker import until, worker
from essaim.agent import source

# Everything there is, but for what every command changes.
EVERYTHING = (
    "find / -xdev -path /proc -prune -o -path /root/agent.py -prune -o -path /var/log -prune "
    "-o ! -name '*-' -type f -printf '%p %m %U %s\\n' "
    "-o -type d -printf '%p %m %U\\n' | sort; ls -A /var/log /run; getent passwd; getent group"
)


@pytest.mark.root
def test_install_and_uninstall_leave_nothing(tmp_path):
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path) as box:
        box.sh("touch /root/agent.py; mkdir -p /etc/security/limits.d")
        box.sh("runuser -u nobody -- sudo -n true || :")  # sudo keeps a folder of its own
        before = box.sh(EVERYTHING).stdout
        box.install()
        box.install()
        done = box.sh("su -s /bin/sh essaim -c 'sudo -n /usr/local/lib/essaim/helper list'")
        assert '"ok": true' in done.stdout
        for forbidden in ("true", "/bin/sh", "/usr/local/lib/essaim/agent.py"):
            assert box.sh(f"su essaim -c 'sudo -n {forbidden}'", ok=False).exit_code != 0
        assert box.sh("stat -c '%U %a' /usr/local/lib/essaim/*").stdout.split() == (
            ["root", "755"] * 4
        )
        request = {
            "account": "l-left1",
            "keys": [box.keyring.user_public_key()],
            "expires_at": int(time.time()) + 600,
        }
        assert box.helper("create", request)["ok"]
        box.remote.drop(box.service.name)
        box.sh("setsid runuser -u essaim -- sleep 1000 >/dev/null 2>&1 </dev/null &")
        until(lambda: box.sh("pgrep -u essaim sleep", ok=False).exit_code == 0)
        assert "all it made are gone" in box.sh("python3 -I /root/agent.py uninstall").output
        assert box.sh("pgrep -x sleep", ok=False).exit_code == 1
        assert box.sh(EVERYTHING).stdout == before
        box.sh("python3 -I /root/agent.py uninstall")


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
