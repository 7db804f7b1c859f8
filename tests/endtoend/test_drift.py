"""`plan --deep` and `up --deep` see what was changed by hand, and mend it."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

import patience

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

FILES = {
    "stack.yaml": """\
        defaults: [{size: tiny}, {site: local}, _self_]
        name: drifting
        image: base
        topology: {a: {roles: [greeting, safe]}, b: {roles: [greeting, safe]}}
        network: {cidr: 10.9.0.0/24}
        vars: {safe: {token: !secret token}}
        """,
    "roles/greeting/role.yaml": """\
        files: [{template: motd.j2, to: /etc/motd}]
        run:
          - name: daemon
            unless: pgrep -x sleep
            do: setsid sleep 9999 </dev/null >/dev/null 2>&1 &
        ready: {command: pgrep -x sleep}
        """,
    "roles/greeting/motd.j2": "{{ machine.name }}\nof {{ stack }}\n",
    "roles/safe/role.yaml": """\
        vars: {token: ""}
        files: [{content: "token {{ vars.token }}\\n", to: /etc/token, mode: "0600"}]
        """,
    "secrets/token": "swordfish\n",
}


@pytest.fixture
def lab(tmp_path):
    for name, text in FILES.items():
        file = tmp_path / "lab" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    (tmp_path / "lab/secrets/token").chmod(0o600)
    return str(tmp_path / "lab")


def test_drift_is_found_shown_and_mended_and_nothing_else_is_touched(root, lab):
    root.types("up", lab, within=600)
    assert "nothing to change" in root.types("plan", lab, "--deep")

    root.types("run", "drifting/a", "--", "sh", "-c", "pkill sleep; echo more >>/etc/motd")
    root.types("run", "drifting/b", "--", "sh", "-c", "echo token marlin >/etc/token")
    assert "nothing to change" in root.types("plan", lab), "without --deep nobody looks"

    said = root.types("plan", lab, "--deep")
    assert "drifting/a: /etc/motd" in said
    assert "-more" in said
    assert "/etc/motd was edited; daemon would run again; not ready: exit 1" in said
    assert "drifting/b: /etc/token" in said
    assert "the difference is not shown" in said
    assert "marlin" not in said
    assert "swordfish" not in said
    plan = json.loads(root.types("plan", lab, "--deep", "--json"))
    changed = {(change["machine"], change["role"]) for change in plan["changes"]}
    assert changed == {("drifting/a", "greeting"), ("drifting/b", "safe")}

    assert "done in" in root.types("up", lab, "--deep")
    assert "nothing to change" in root.types("up", lab, "--deep")
    assert root.types("run", "drifting/a", "--", "cat", "/etc/motd") == "a\nof drifting\n"


@patience.in_test_all
def test_a_machine_that_cannot_be_looked_at_is_named(root, lab):
    root.types("up", lab, within=600)
    root.types("run", "drifting/b", "--", "sh", "-c", "echo >/root/.ssh/authorized_keys")
    said = root.types("plan", lab, "--deep")
    assert "cannot be looked at" in said
    assert "drifting/b" in said
    assert "drifting/a" not in said
