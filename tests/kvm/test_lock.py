"""A lock proves virtual machines as it does sandboxes, on the smallest image there is (R-A4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patience import in_test_libvirt

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800), in_test_libvirt]

ROLE = {
    "files": [
        {"content": "{{ machine.name }} of {{ stack }}\n", "to": "/etc/mark", "mode": "0640"},
    ],
    "run": [{"name": "folder", "unless": "test -d /srv/work", "do": "mkdir -p /srv/work"}],
    "ready": {"command": "test -d /srv/work"},
}


def test_a_virtual_cluster_is_proven_and_a_hand_edit_found(lab):
    where = lab.stack("proof", 1)
    file = Path(where) / "stack.yaml"
    file.write_text(file.read_text().replace("count: 1", "count: 1, roles: [mark]"))
    role = Path(where) / "roles" / "mark" / "role.yaml"
    role.parent.mkdir(parents=True)
    role.write_text(json.dumps(ROLE))

    lab.types("lock", where)
    lock = json.loads((Path(where) / "essaim.lock").read_text())
    (image,) = lock["images"].values()
    assert (image["form"], len(image["content"])) == ("disk", 64)
    assert lock["nodes"]["nodes-1"]["roles"] == ["names", "mark"]
    assert "qemu-img" in lock["tools"]

    lab.types("up", where, "--locked")
    said = lab.types("verify", where)
    assert "proof: identical (1 identical)" in said

    edit = "echo more >>/etc/mark; chmod 600 /etc/mark; rmdir /srv/work; echo x >/etc/hosts"
    lab.types("run", "proof/nodes-1", "--", "sh", "-c", edit)
    said = lab.types("verify", where, code=1)
    assert "ok  description" in said
    assert "NO  proof/nodes-1 /etc/mark does not hold what role mark writes there" in said
    assert "NO  proof/nodes-1 /etc/mark has mode 600, not 640" in said
    assert "NO  proof/nodes-1 step folder of role mark is undone" in said
    assert "NO  proof/nodes-1 step hosts of role names is undone" in said
