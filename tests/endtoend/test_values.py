"""Values that roles provide reach those who need them, secrets reach nobody else (R-C1, R-A6)."""

from __future__ import annotations

import json
from pathlib import Path

STACK = """\
defaults: [{size: tiny}, {site: local}, _self_]
name: values
image: base
topology:
  giver: {roles: [giver]}
  takers: {count: 2, roles: [taker]}
network: {cidr: 10.9.0.0/24}
vars: {giver: {token: !secret giver-token}}
"""
GIVER = {
    "vars": {"token": ""},
    "files": [{"content": "{{ vars.token }}\n", "to": "/root/token", "mode": "0600"}],
    "run": [{"name": "leak", "do": "cat /root/token; echo told", "watch": ["/root/token"]}],
    "provides": {
        "token": {"command": "cat /root/token", "secret": True},
        "where": {"value": "{{ machine.address }}"},
    },
}
TAKER = {
    "needs": {"token": "giver", "where": "giver"},
    "files": [{"content": "{{ needs.where }} {{ needs.token }}\n", "to": "/root/given"}],
}


def lab(at: Path) -> Path:
    stack = at / "lab"
    for name, role in (("giver", GIVER), ("taker", TAKER)):
        (stack / "roles" / name).mkdir(parents=True)
        (stack / "roles" / name / "role.yaml").write_text(json.dumps(role))
    (stack / "stack.yaml").write_text(STACK)
    secret = stack / "secrets" / "giver-token"
    secret.parent.mkdir()
    secret.write_text("swordfish-1\n")
    secret.chmod(0o600)
    return stack


def given(root) -> set[str]:
    found = json.loads(root.types("run", "values/takers", "--json", "--", "cat", "/root/given"))
    return {answer["output"] for answer in found}


def test_a_changed_value_is_carried_to_those_who_were_given_the_old_one(root, tmp_path):
    stack = lab(tmp_path)
    root.types("up", str(stack), within=600)
    assert given(root) == {"10.9.0.10 swordfish-1\n"}
    assert "nothing to change" in root.types("up", str(stack))

    # A secret's value is no part of a plan, so a change of it alone is not seen.
    (stack / "secrets" / "giver-token").write_text("swordfish-2\n")
    assert "nothing to change" in root.types("up", str(stack))
    role = json.dumps({**GIVER, "summary": "changed"})
    (stack / "roles" / "giver" / "role.yaml").write_text(role)
    plan = json.loads(root.types("plan", str(stack), "--json"))
    assert {change["role"] for change in plan["changes"]} == {"giver"}
    root.types("up", str(stack))
    assert given(root) == {"10.9.0.10 swordfish-2\n"}

    (stack / "secrets" / "giver-token").write_text("swordfish-3\n")
    root.types("up", str(stack), "--again")
    assert given(root) == {"10.9.0.10 swordfish-3\n"}


def test_a_secret_is_in_no_log_plan_journal_or_configuration(root, tmp_path):
    stack = lab(tmp_path)
    said = root.types("up", str(stack), within=600)
    said += root.types("config", "show", str(stack))
    said += root.types("config", "show", str(stack), "--json")
    said += root.types("logs", "values", "-n", "500")
    runs = json.loads(root.types("runs", "--json"))
    said += root.types("runs", "show", runs[0]["id"], "--json")
    assert "told" in said
    assert "swordfish" not in said
    assert b"swordfish" not in (root.state / "essaim.db").read_bytes()
