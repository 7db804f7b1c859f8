"""The audit trail from the command line."""

from __future__ import annotations

import json

import sqlalchemy as sa

from essaim.store.audit.table import audit as table


def test_an_administrator_reads_and_verifies_it(here, admin, ada):
    said = admin.does("audit", "--since", "1h", "--who", "ada")
    assert [line.split()[2:5] for line in said.splitlines()] == [
        ["done", "ada", "signup"],
        ["done", "ada", "login"],
    ]
    lines = admin.does("audit", "--json").splitlines()
    head = json.loads(lines[-1])["hash"]
    assert "none changed" in admin.does("audit", "verify", "--head", head)
    assert "only administrators" in ada.does("audit", code=1)

    other = admin.does("audit", "verify", "--head", "0" * 64, code=1)
    assert "was cut or written anew" in other
    forged = sa.update(table).where(table.c.place == 1).values(name="bob")
    here.plane.database.write(lambda c: c.execute(forged))
    assert "entry 1 was changed" in admin.does("audit", "verify", code=1)
