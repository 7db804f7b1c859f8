"""The school's own file, letter by letter, on a simulated Proxmox VE whose containers are real.

Names are in a real BIND; the containers are sandbox machines; the play is Ansible's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from endtoend.people import OURS, ROOT, Person
from endtoend.school_names import dig, schools_names
from endtoend.school_rig import lab_proxmox
from servers.nameservers import SECRET
from testcache import CACHE

HOST = "cloud.prod.pft.cri.local.isima.fr"
ADDRESS = "192.168.79.170"


@pytest.mark.timeout(900)
def test_simulated_proxmox_makes_the_schools_file_real_machines(tmp_path):
    """R-B4: one file becomes a machine, a name `dig` is told, and a play with its extravars."""
    lab = tmp_path / "lab"
    shutil.copytree(ROOT / "examples" / "project", lab)
    extra = {"ESSAIM_CACHE": str(CACHE), "SCHOOL_DNS_KEY": SECRET}
    person = Person(tmp_path / "home", lab, OURS, extra=extra)
    person.home.mkdir()
    words = ("--speed", "50", "--port", "0", "--real")
    with schools_names() as names, lab_proxmox(person, *words) as cluster:
        site = Path(cluster.told["site"]).read_text()
        (lab / "site" / "cri.yaml").write_text(f"{site}dns: {json.dumps(names)}\n")

        person.types("project", "apply", "profan.yaml", "--yes")
        assert dig(names["port"], HOST, "A") == ADDRESS
        assert dig(names["port"], "-x", ADDRESS) == f"{HOST}."
        told = person.types("run", "profan-prod", "--", "cat", "/etc/ssh/sshd_config.d/profan.conf")
        assert "Port 22" in told
        assert "PermitRootLogin yes" in told
        assert "AllowAgentForwarding yes" in told
        assert "nothing to change" in person.types("project", "apply", "profan.yaml", "--yes")

        person.types("project", "down", "profan-prod", "--yes")
        assert dig(names["port"], HOST, "A") == ""
        assert "profan" not in person.types("status")
