"""Whoever holds an enrolment token does not take another machine's place in the fleet."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from api.rig import is_problem, world
from essaim.model.errors import RejectedError, UnauthorisedError
from essaim.model.fleet import NodeState, Proof, Role, Wish
from essaim.usecases import leases, nodes
from essaim.usecases.credentials import digest
from usecases.plane import KEY, Plane, machine

KINDS = {"ed25519": [], "ecdsa": ["-b", "384"], "rsa": ["-b", "2048"]}


@pytest.fixture
def there(new_database):
    with world(new_database("sqlite")) as made:
        yield made


def new_key(folder: Path, name: str, kind: str = "ed25519") -> Path:
    path = folder / name
    words = ["ssh-keygen", "-q", "-N", "", "-t", kind, *KINDS[kind], "-f", str(path)]
    subprocess.run(words, check=True)
    return path


def public(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def signed(key: Path, text: str, namespace: str = "essaim-register") -> str:
    """What `ssh-keygen -Y sign` makes of it, on one line."""
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace]
    done = subprocess.run(words, input=text.encode(), check=True, capture_output=True)
    return "".join(done.stdout.decode().splitlines()[1:-1])


def announced(token: str, key: Path, **more) -> dict:
    told = {"token": token, "name": "pc-1", "cores": 1, "memory": 512, "address": "192.0.2.1"}
    return {**told, "host_key": public(key), **more}


def test_a_token_does_not_take_the_row_of_a_machine_whose_public_host_key_is_known(there, tmp_path):
    key = new_key(tmp_path, "host")
    joined = there.ask(
        "POST", "/api/workers/register", json=announced(there.plane.enrolment(), key)
    ).json()
    token = there.plane.enrolment()
    rogue = announced(token, key, address="192.0.2.66", tunnel_key=KEY)
    answer = there.ask("POST", "/api/workers/register", json=rogue)
    problem = is_problem(answer, 401, "unauthorised")
    assert "a machine with this host key has joined already" in problem["detail"]
    assert f"essaim nodes remove {joined['node_id']}" in problem["hint"]
    # Neither with what another machine was given, nor with nothing.
    other, credential = there.plane.join("other")
    for shown in (credential, "", "node_guessed"):
        headers = {"Essaim-Credential": shown}
        answer = there.ask("POST", "/api/workers/register", json=rogue, headers=headers)
        is_problem(answer, 401, "unauthorised")
    assert there.plane.fleet.get(joined["node_id"]).address == "192.0.2.1"
    beat = {"boot_id": "boot", "seq": 1}
    answer = there.ask("POST", "/api/workers/heartbeat", joined["credential"], json=beat)
    assert answer.status_code == 200
    # The token was not used up by who may not use it.
    mine = announced(token, new_key(tmp_path, "mine"))
    assert there.ask("POST", "/api/workers/register", json=mine).status_code == 201
    assert other


@pytest.mark.parametrize("kind", KINDS)
def test_the_machine_itself_joins_anew_with_a_signature_of_its_host_key(there, tmp_path, kind):
    key = new_key(tmp_path, "host", kind)
    first = there.ask(
        "POST", "/api/workers/register", json=announced(there.plane.enrolment(), key)
    ).json()
    token = there.plane.enrolment()
    asked = there.ask("POST", "/api/workers/challenge", json={"token": token})
    challenge = asked.json()["challenge"]
    headers = {"Essaim-Challenge": challenge, "Essaim-Signature": signed(key, challenge)}
    again = there.ask("POST", "/api/workers/register", json=announced(token, key), headers=headers)
    assert (again.status_code, again.json()["node_id"]) == (201, first["node_id"])
    beat = {"boot_id": "boot", "seq": 1}
    answer = there.ask("POST", "/api/workers/heartbeat", first["credential"], json=beat)
    is_problem(answer, 401, "unauthorised")


def test_the_machine_itself_joins_anew_with_its_credential(there, tmp_path):
    key = new_key(tmp_path, "host")
    first = there.ask(
        "POST", "/api/workers/register", json=announced(there.plane.enrolment(), key)
    ).json()
    headers = {"Essaim-Credential": first["credential"]}
    body = announced(there.plane.enrolment(), key)
    again = there.ask("POST", "/api/workers/register", json=body, headers=headers)
    assert (again.status_code, again.json()["node_id"]) == (201, first["node_id"])


@pytest.fixture
def plane(sqlite) -> Plane:
    return Plane(sqlite)


@pytest.fixture
def admin(plane):
    return plane.user("root", Role.ADMIN)


def test_a_signature_that_does_not_fit_is_none(plane, admin, tmp_path):
    key, own = new_key(tmp_path, "host"), new_key(tmp_path, "own")
    token, second = (nodes.enrol(plane, admin, uses=9) for _ in range(2))
    host = machine("one", host_key=public(key))
    nodes.register(plane, token, host)

    def refused(proof: Proof, said=host) -> None:
        with pytest.raises(UnauthorisedError, match="the signature is not by this host key"):
            nodes.register(plane, token, said, proof)

    def asked(of: str = token) -> str:
        return nodes.challenge(plane, of)

    text = asked()
    refused(Proof(challenge=text, signature=signed(own, text)))  # another's key
    text = asked()
    refused(Proof(challenge=text, signature=signed(key, text, "file")))  # for another purpose
    text = asked()
    refused(Proof(challenge=text, signature=signed(key, asked())))  # of another text
    refused(Proof(challenge="challenge_mine", signature=signed(key, "challenge_mine")))
    text = asked(second)
    refused(Proof(challenge=text, signature=signed(key, text)))  # for another token
    text = asked()
    refused(Proof(challenge=text, signature="AAAA" + signed(key, text)[4:]))
    text = asked()
    good = Proof(challenge=text, signature=signed(key, text))
    nodes.register(plane, token, host, good)
    refused(good)  # seen, and shown again
    # Nor does a machine join by the public key of one that has not joined yet.
    text = asked()
    new = machine("two", host_key=public(new_key(tmp_path, "new")))
    refused(Proof(challenge=text, signature=signed(own, text)), new)
    with pytest.raises(UnauthorisedError, match="unknown, used up or over"):
        nodes.challenge(plane, "enrol_unknown")


def test_where_the_setting_says_so_no_machine_joins_unsigned(plane, admin, tmp_path):
    key = new_key(tmp_path, "host")
    token, said = nodes.enrol(plane, admin), machine("one", host_key=public(key))
    with pytest.raises(UnauthorisedError, match="does not sign with its host key"):
        nodes.register(plane, token, said, always=True)
    text = nodes.challenge(plane, token)
    proof = Proof(challenge=text, signature=signed(key, text))
    assert nodes.register(plane, token, said, proof, always=True).node_id


def test_tokens_are_listed_without_themselves_and_revoked(plane, admin):
    token = nodes.enrol(plane, admin, uses=3, site="room-12", labels={"gpu": "no"})
    (found,) = nodes.enrolments(plane, admin)
    assert (found.uses, found.site, found.labels, found.who) == (
        3,
        "room-12",
        {"gpu": "no"},
        "root",
    )
    assert digest(token).startswith(found.id)
    assert token not in repr(found)
    nodes.register(plane, token, machine("one"))
    assert [each.uses for each in nodes.enrolments(plane, admin)] == [2]
    nodes.revoke(plane, admin, found.id)
    assert nodes.enrolments(plane, admin) == []
    with pytest.raises(UnauthorisedError):
        nodes.register(plane, token, machine("two"))
    assert [node.name for node in plane.fleet.list()] == ["one"]


def test_a_machine_that_waits_for_approval_is_rented_to_nobody(plane, admin):
    ada = plane.user("ada")
    token = nodes.enrol(plane, admin, uses=2, approve=True)
    told = nodes.register(plane, token, machine("one"))
    nodes.heartbeat(plane, told.credential, nodes.Beat(boot_id="boot", seq=1))
    assert plane.fleet.move(told.node_id, NodeState.READY, of=[NodeState.CLEANING])
    assert nodes.node(plane, admin, told.node_id).waiting
    lease = leases.rent(plane, ada, Wish(), KEY)
    assert lease.nodes == ()
    with pytest.raises(RejectedError, match="waits for approval"):
        nodes.drain(plane, plane.user("olga", Role.OPERATOR), told.node_id, False)
    # It does not let itself in by joining anew.
    again = nodes.register(plane, token, machine("one"), Proof(credential=told.credential))
    assert nodes.node(plane, admin, again.node_id).waiting
    assert plane.fleet.move(told.node_id, NodeState.READY, of=[NodeState.CLEANING])
    assert not nodes.approve(plane, admin, told.node_id).waiting
    with pytest.raises(RejectedError, match="does not wait for approval"):
        nodes.approve(plane, admin, told.node_id)
    leases.grant_queue(plane)
    assert plane.leases.get(lease.id).nodes == (told.node_id,)
