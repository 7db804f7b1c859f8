"""The same API on every database."""

from __future__ import annotations

from api.rig import PASSWORD, wait_for, world


def test_signing_up_renting_and_releasing(url):
    ada = {"name": "ada", "password": PASSWORD}
    with world(url) as there:
        node = there.plane.ready("pc-1")
        assert there.client.get("/readyz").status_code == 200
        assert there.ask("POST", "/api/signup", json=ada).status_code == 201
        tokens = there.ask("POST", "/api/login", json=ada).json()
        tokens = there.ask("POST", "/api/refresh", json={"refresh": tokens["refresh"]}).json()
        token = tokens["access"]
        answer = there.rent(token, key="once")
        assert answer.status_code == 201, answer.text
        lease = answer.json()
        assert lease["nodes"] == [node]
        assert there.rent(token, key="once").json()["id"] == lease["id"]
        for path in ("/api/nodes", "/api/leases", f"/api/nodes/{node}", lease["run_address"]):
            assert there.ask("GET", path, token).status_code == 200
        more = {"lease": lease["id"], "seconds": 60}
        assert there.ask("POST", "/api/extend", token, json=more).status_code == 200
        body = {"lease": lease["id"]}
        assert there.ask("POST", "/api/release", token, json=body).status_code == 200
        path = f"/api/leases/{lease['id']}"
        wait_for(lambda: there.ask("GET", path, token).json()["state"] == "ended")
        assert 'essaim_nodes{state="ready"} 1' in there.client.get("/metrics").text
        assert there.ask("POST", "/api/logout", token).status_code == 204
