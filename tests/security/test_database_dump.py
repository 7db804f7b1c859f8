"""A thief who has every row of the database gets in nowhere with what is written there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncssh
import httpx
import pytest
import sqlalchemy as sa

from essaim.api.bruno import _example as example
from essaim.bootstrap import App
from essaim.cli.plane import ApiServer, GatewayServer, listening
from essaim.model.errors import TransientError
from essaim.model.fleet import NodeState, Role, Wish
from essaim.remote.inner import NOBODY, dial_inner
from essaim.usecases import leases, nodes
from essaim.usecases.keys import same_keys
from essaim.usecases.people import first_admin
from usecases.plane import machine

PATIENCE = 60.0
KEY = asyncssh.generate_private_key("ssh-ed25519")
#: A request that a proxy passed on, so that none counts as one of this computer's own.
ELSEWHERE = {"X-Forwarded-For": "192.0.2.99", "Via": "1.1 proxy"}
REFUSED = (401, 403)


def signed(claims: dict[str, Any], secret: bytes, **header: str) -> str:
    """A token by hand: libraries refuse to sign with what does not look like a key."""
    parts = ({"alg": "HS256", "typ": "JWT", **header}, claims)
    said = b".".join(_base64(json.dumps(part).encode()) for part in parts)
    return (said + b"." + _base64(hmac.digest(secret, said, "sha256"))).decode()


def _base64(body: bytes) -> bytes:
    return base64.urlsafe_b64encode(body).rstrip(b"=")


@dataclass
class Stolen:
    """All rows, and where the doors are."""

    url: str
    ssh_port: int
    rows: dict[str, list[dict[str, Any]]]
    document: dict[str, Any] = field(default_factory=dict)

    def texts(self) -> set[str]:
        """Every text that stands somewhere, and every word of one."""
        values = [value for rows in self.rows.values() for row in rows for value in row.values()]
        found = {str(value) for value in values if isinstance(value, str | bytes) and value}
        return found | {word for text in found for word in text.split() if len(word) > 7}

    def secrets(self) -> set[bytes]:
        """Whatever may be a key: each text, and the bytes it is the hexadecimal of."""
        found = {text.encode() for text in self.texts()}
        for text in self.texts():
            with contextlib.suppress(ValueError):
                found.add(bytes.fromhex(text))
        return {secret for secret in found if len(secret) >= 8}

    def session_ids(self) -> set[str]:
        named = {str(row["id"]) for row in self.rows["session"]}
        return named | {str(row["session"]) for row in self.rows["refresh"]}

    def forged(self) -> Iterator[str]:
        """Access tokens of every person, signed with everything that might be the key."""
        persons = [(str(row["id"]), str(row["role"])) for row in self.rows["person"]]
        kids = {word for row in self.rows["setting"] for word in str(row["value"]).split()[:1]}
        mine = {str(row["person"]): str(row["id"]) for row in self.rows["session"]}
        for secret, (person, role) in itertools.product(sorted(self.secrets()), persons):
            for sid in {mine.get(person, ""), *self.session_ids()}:
                claims = {"sub": person, "role": role, "sid": sid, "exp": int(time.time()) + 900}
                yield signed(claims, secret)
                for kid in kids if secret == min(self.secrets()) else ():
                    yield signed(claims, secret, kid=kid)

    def operations(self) -> Iterator[tuple[str, str, Any, bool]]:
        """Every method and path that is described, with a body that fits; whether it is guarded."""
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                content = operation.get("requestBody", {}).get("content", {})
                schema = content.get("application/json", {}).get("schema")
                body = example(self.document, schema) if schema else None
                yield method.upper(), _filled(path), body, bool(operation.get("security"))


def _filled(path: str) -> str:
    names = {"{name}": "admin", "{roster}": "promo", "{login}": "alice", "{verb}": "start"}
    for name, value in names.items():
        path = path.replace(name, value)
    ids = {
        "{lease_id}": "l-00000000",
        "{session_id}": "0f3a9c81d2e4",
        "{token_id}": "t-0f3a9c81d2e4",
    }
    for part in ("{node_id}", "{lease_id}", "{run_id}", "{run}", "{label}", *ids):
        path = path.replace(part, ids.get(part, "x-0f3a9c81"))
    return path


@pytest.fixture(scope="module")
def stolen(tmp_path_factory) -> Iterator[Stolen]:
    """A control plane that people and machines use, and a copy of its database."""
    home = tmp_path_factory.mktemp("plane")
    app = App({"ESSAIM_HOME": str(home), "ESSAIM_CACHE": str(home / "cache")}, kind="api")
    same_keys(app)
    doors, api = GatewayServer(app, ("127.0.0.1", 0)), listening("127.0.0.1", 0)
    server = ApiServer(app, [api], gateway=("127.0.0.1", 1))
    url = f"http://127.0.0.1:{api.getsockname()[1]}"
    with contextlib.ExitStack() as stack:
        stack.callback(app.close)
        for part in (doors, server):
            part.start()
            stack.callback(part.stop)
        used(app, url)
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            document = client.get("/openapi.json").json()
        yield Stolen(url, doors.gateway.port, dump(app), document)


def used(app: App, url: str) -> None:
    """Let there be something of everything: sessions, tokens, machines, a lease, a visit."""
    password = first_admin(app)
    with httpx.Client(base_url=f"{url}/api/", timeout=PATIENCE) as client:
        for _ in range(2):
            tokens = client.post("login", json={"name": "admin", "password": password}).json()
        tokens = client.post("refresh", json={"refresh": tokens["refresh"]}).json()
        headers = {"Authorization": f"Bearer {tokens['access']}"}
        assert client.get("me", headers=headers).json()["role"] == "admin"
        program = {"name": "nightly", "scope": "admin"}
        assert client.post("tokens", json=program, headers=headers).status_code == 201
        token = client.post("enrolments", json={"uses": 3}, headers=headers).json()["token"]
    joined = nodes.register(app, token, machine("pc-1"))
    app.fleet.move(joined.node_id, NodeState.READY, of=[NodeState.CLEANING])
    admin = app.people.find("admin")[0]
    assert admin.role is Role.ADMIN
    lease = leases.rent(app, admin, Wish(), KEY.export_public_key().decode().strip())
    assert lease.nodes


def dump(app: App) -> dict[str, list[dict[str, Any]]]:
    found = sa.MetaData()
    with app.database.engine.connect() as connection:
        found.reflect(connection)
        return {
            name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for name, table in found.tables.items()
        }


@pytest.fixture
def thief(stolen) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stolen.url, timeout=PATIENCE, headers=ELSEWHERE) as client:
        yield client


def get_in(thief: httpx.Client, token: str) -> bool:
    if not token.isascii() or not token.isprintable() or len(token) > 4000:
        return False
    answer = thief.get("/api/me", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code not in REFUSED


def test_the_dump_holds_something_of_everything(stolen):
    for name in (
        "person", "session", "refresh", "api_token", "enrolment", "node", "pulse", "lease",
        "setting",
    ):  # fmt: skip
        assert stolen.rows[name], name
    assert len(stolen.secrets()) > 50


def test_no_access_token_can_be_forged(stolen, thief):
    assert [token for token in stolen.forged() if get_in(thief, token)] == []


def test_nothing_that_is_written_there_is_a_token(stolen, thief):
    tried = [f"{kind}{text}" for text in stolen.texts() for kind in ("", "essaim_", "refresh_")]
    assert [text for text in tried if get_in(thief, text)] == []
    for text in stolen.texts():
        for path, body in (
            ("/api/refresh", {"refresh": text[:1000]}),
            ("/api/workers/heartbeat", {"boot_id": "b", "seq": 1}),
        ):
            token = text if text.isascii() and text.isprintable() and len(text) < 4000 else "x"
            headers = {"Authorization": f"Bearer {token}"}
            answer = thief.post(path, json=body, headers=headers)
            assert answer.status_code in REFUSED, (path, text)


def test_hashes_of_passwords_and_digests_of_enrolments_let_nobody_in(stolen, thief):
    for row in stolen.rows["person"]:
        body = {"name": row["name"], "password": row["password"]}
        assert thief.post("/api/login", json=body).status_code == 401
    known = {"name": "pc-9", "cores": 1, "memory": 512, "tunnel": True,
             "host_key": KEY.export_public_key().decode().strip()}  # fmt: skip
    for row in stolen.rows["enrolment"]:
        body = {"token": row["digest"], **known}
        assert thief.post("/api/workers/register", json=body).status_code in REFUSED


def test_every_route_refuses_the_best_forgeries(stolen, thief):
    """Each route by itself: none authenticates in a way of its own."""
    settings = [str(row["value"]).split()[0] for row in stolen.rows["setting"]]
    forged = list(stolen.forged())
    tokens = ["", *settings, *stolen.session_ids(), *forged[:: max(1, len(forged) // 12)]]
    tokens += [str(row["credential"]) for row in stolen.rows["pulse"]]
    tokens += [str(row["digest"]) for row in stolen.rows["refresh"]]
    guarded = [each[:3] for each in stolen.operations() if each[3]]
    assert len(guarded) > 30
    for (method, path, body), token in itertools.product(guarded, tokens):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = thief.request(method, path, json=body, headers=headers)
        assert answer.status_code in REFUSED, (method, path, token, answer.text)


def test_the_gateway_s_inner_door_stays_shut(stolen):
    (door,) = [row for row in stolen.rows["gateway"] if row["port"]]
    node = stolen.rows["node"][0]["id"]
    for secret, wanted in itertools.product(sorted(stolen.secrets()), (NOBODY, node)):
        with pytest.raises(TransientError, match=r": no$"):
            dial_inner(
                (door["address"], door["port"]),
                gateway=door["id"], node=wanted, key=secret, within=PATIENCE,
            )  # fmt: skip


def test_the_gateway_lets_nobody_in_with_what_is_written_there(stolen):
    names = [str(row["id"]) for row in stolen.rows["lease"]]
    names += [str(row["id"]) for row in stolen.rows["node"]]
    mine = asyncssh.generate_private_key("ssh-ed25519")
    for name in names:
        for how in ({"client_keys": [mine]}, {"password": stolen.rows["person"][0]["password"]}):
            with pytest.raises(asyncssh.PermissionDenied):
                asyncio.run(knock(stolen.ssh_port, name, {"client_keys": None, **how}))


async def knock(port: int, name: str, how: dict[str, Any]) -> None:
    await asyncssh.connect(
        "127.0.0.1", port, username=name, known_hosts=None, config=None, agent_path=None, **how
    )
