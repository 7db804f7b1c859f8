"""Keys are replaced while everybody works; what the old ones signed is refused afterwards."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import jwt
import pytest
import sqlalchemy as sa

from api.rig import KEY, Plane, options, serving, wait_for
from essaim.api.app import create_app
from essaim.model.errors import RejectedError, SetupError, UnauthorisedError
from essaim.remote import signing_keys as files
from essaim.store.people import kept_as
from essaim.store.schema import refresh, session, setting
from essaim.store.settings import Settings
from essaim.usecases import people
from essaim.usecases.credentials import ACCESS_SECONDS, digest, new_token
from essaim.usecases.signing_keys import (
    ACCESS,
    INNER,
    KINDS,
    listed,
    other_signing_key,
    rotate,
    warn_of_database,
)
from patience import in_test_all


def now() -> float:
    return time.time()


class Clock:
    """The time of `remote.signing_keys`, which a test may put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return now() + self.ahead


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(files, "time", made)
    return made


@pytest.fixture
def plane(new_database) -> Iterator[Plane]:
    with contextlib.closing(Plane(new_database("sqlite"))) as made:
        made.settings = Settings(made.database)
        yield made


def keep_in_database(plane: Plane) -> dict[str, bytes]:
    """Leave the keys where the first release keeps them."""
    return {name: plane.settings.secret(kind.setting) for name, kind in KINDS.items()}


def kid(token: str) -> str:
    return jwt.get_unverified_header(token)["kid"]


# -- files ------------------------------------------------------------------------------------


def test_keys_are_files_of_their_owner_and_not_in_the_database(plane):
    ann = plane.user("ann")
    people.begin_session(plane, ann)
    path = plane.signing_keys[ACCESS].path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    secret = plane.signing_keys[ACCESS].signing().secret.hex()
    rows = plane.database.read(lambda c: c.execute(sa.select(setting)).all())
    assert secret not in repr(rows)
    assert secret not in repr(list(listed(plane))) + repr(plane.signing_keys[ACCESS].signing())


def test_a_process_with_other_keys_is_told_so_and_makes_none(plane, tmp_path):
    assert other_signing_key(plane, ACCESS) == ""
    mine = plane.signing_keys
    elsewhere = files.SigningKeys(tmp_path / "x.keys", stored=lambda: None, keep=1.0)
    plane.signing_keys = {**mine, ACCESS: elsewhere}
    assert "is not in" in other_signing_key(plane, ACCESS)
    with pytest.raises(SetupError, match="is not in"):
        rotate(plane, [ACCESS])
    assert list(tmp_path.glob("*.keys")) == []
    elsewhere.signing()
    assert "but this control plane has" in other_signing_key(plane, ACCESS)
    plane.signing_keys = mine
    rotate(plane)
    assert other_signing_key(plane, ACCESS) == ""


def test_a_file_that_is_no_key_is_said_and_not_replaced(plane):
    keys = plane.signing_keys[ACCESS]
    keys.signing()
    keys.path.write_text("{}")
    with pytest.raises(SetupError, match="cannot be read"):
        keys.signing()
    assert keys.path.read_text() == "{}"


# -- what counts ------------------------------------------------------------------------------


def test_the_old_key_counts_until_its_tokens_are_over_and_then_no_more(plane, clock):
    ann = plane.user("ann")
    old = people.begin_session(plane, ann).access
    rotate(plane)
    assert kid(people.begin_session(plane, ann).access) == kid(old)  # others may not have read it
    clock.ahead = files.SIGNS_AFTER + 1
    new = people.begin_session(plane, ann).access
    assert kid(new) != kid(old)
    for token in (old, new):
        assert people.authenticate(plane, token).user == ann
    clock.ahead = ACCESS_SECONDS + 120
    with pytest.raises(UnauthorisedError):
        people.authenticate(plane, old)
    assert people.authenticate(plane, new).user == ann
    assert {each.state for each in listed(plane)} == {"current", "forgotten"}


def test_a_key_that_was_stolen_is_refused_at_once_and_nobody_is_logged_out(plane):
    ann = plane.user("ann")
    tokens = people.begin_session(plane, ann)
    stolen = plane.signing_keys[ACCESS].signing()
    rotate(plane, forget=True)
    claims = jwt.decode(tokens.access, options={"verify_signature": False})
    forged = jwt.encode(claims, stolen.secret, algorithm="HS256")
    renamed = {"kid": plane.signing_keys[ACCESS].signing().kid}
    for token in (
        tokens.access,
        forged,
        jwt.encode(claims, stolen.secret, algorithm="HS256", headers=renamed),
    ):
        with pytest.raises(UnauthorisedError):
            people.authenticate(plane, token)
    again = people.refresh(plane, tokens.refresh)
    assert people.authenticate(plane, again.access).user == ann


# -- from the release that kept them in the database --------------------------------------------


def old_token(plane: Plane, user) -> tuple[str, str]:
    """An access and a refresh token as the first release makes them."""
    sid, token = f"s-{secrets.token_hex(8)}", new_token("refresh")
    plane.people.open_session(sid, user.id, digest(token), 3600)
    claims = {"sub": user.id, "role": "member", "sid": sid, "exp": int(now()) + 900}
    key = bytes.fromhex(plane.settings.get("access-token-key"))
    return jwt.encode(claims, key, algorithm="HS256"), token


def test_while_the_key_is_in_the_database_the_first_release_understands_everything(plane):
    key = keep_in_database(plane)[ACCESS]
    tokens = people.begin_session(plane, plane.user("ann"))
    # As its `read_access` and `session_user` do.
    claims = jwt.decode(tokens.access, key, algorithms=["HS256"])
    its = sa.select(session.c.person).where(session.c.id == claims["sid"])
    assert plane.database.read(lambda c: c.execute(its).scalar()) == claims["sub"]
    its = sa.select(refresh.c.session).where(refresh.c.digest == digest(tokens.refresh))
    assert plane.database.read(lambda c: c.execute(its).scalar()) == claims["sid"]
    assert warn_of_database(plane, ACCESS)
    assert not plane.signing_keys[ACCESS].path.exists()


@pytest.fixture
def anywhere(database) -> Iterator[Plane]:
    url = database.engine.url.render_as_string(hide_password=False)
    with contextlib.closing(Plane(url)) as made:
        made.settings = Settings(made.database)
        yield made


def test_rotation_moves_keys_and_ids_out_of_the_database_and_logs_nobody_out(anywhere, clock):
    plane = anywhere
    keep_in_database(plane)
    ann = plane.user("ann")
    theirs, mine = old_token(plane, ann), people.begin_session(plane, ann)
    rotate(plane, wait=lambda _seconds: None)
    rows = plane.database.read(lambda c: c.execute(sa.select(session.c.id)).scalars().all())
    assert [row for row in rows if row.startswith("s-")] == []
    names = plane.database.read(lambda c: c.execute(sa.select(setting.c.name)).scalars().all())
    assert not {kind.setting for kind in KINDS.values()} & set(names)
    assert not warn_of_database(plane, ACCESS)
    clock.ahead = files.SIGNS_AFTER + 1
    for access, refreshed in (theirs, (mine.access, mine.refresh)):
        assert people.authenticate(plane, access).user == ann
        again = people.refresh(plane, refreshed)
        assert kid(again.access) == plane.signing_keys[ACCESS].signing().kid
        # Whoever still uses the one before is not cut off.
        for token in (access, again.access):
            assert people.authenticate(plane, token).user == ann
        third = people.refresh(plane, again.refresh)
        session_of = people.authenticate(plane, third.access).sid
        assert session_of == people.authenticate(plane, again.access).sid
        with pytest.raises(UnauthorisedError, match="used before"):
            people.refresh(plane, refreshed)
        with pytest.raises(UnauthorisedError):
            people.authenticate(plane, third.access)


def test_what_is_kept_of_a_session_is_no_id_of_one(plane):
    """Even with the signing key, the rows name no session."""
    ann = plane.user("ann")
    people.begin_session(plane, ann)
    stored = plane.database.read(lambda c: c.execute(sa.select(session.c.id)).scalar())
    key = plane.signing_keys[ACCESS].signing()
    claims = {"sub": ann.id, "role": "member", "sid": stored, "exp": int(now()) + 900}
    with pytest.raises(UnauthorisedError):
        people.authenticate(plane, jwt.encode(claims, key.secret, algorithm="HS256"))
    assert kept_as(stored) != stored


def test_a_rotation_that_was_interrupted_is_finished(plane):
    keep_in_database(plane)
    old_token(plane, plane.user("ann"))

    def die(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rotate(plane, wait=die)
    made = plane.signing_keys[ACCESS].held()
    assert warn_of_database(plane, ACCESS)
    rotate(plane, wait=lambda _seconds: None)
    assert plane.signing_keys[ACCESS].held() == made
    assert not warn_of_database(plane, ACCESS)


# -- under load ---------------------------------------------------------------------------------


class Load:
    """People who rent and release, refresh and log in, and machines that beat, until told."""

    def __init__(self, plane: Plane, addresses: list[str]) -> None:
        self.over = threading.Event()
        self.bad: list[str] = []
        self.done: Counter[str] = Counter()
        self.kids: dict[str, str] = {}  #: the key that signed what each person shows
        self._addresses = itertools.cycle(addresses)
        self._plane = plane
        crews = [self._tenant, self._tenant, self._agent, self._newcomer]
        self._threads = [
            threading.Thread(target=self._run, args=(act, number))
            for number, act in enumerate(crews)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, act, number: int) -> None:
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(httpx.Client(base_url=next(self._addresses), timeout=60))
                for _ in range(2)
            ]
            try:
                for _ in act(itertools.cycle(clients), number):
                    if self.over.is_set():
                        return
            except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
                self.bad.append(repr(error))

    def _ask(self, client: httpx.Client, path: str, token: str, **body) -> dict:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = client.post(f"/api/{path}", json=body, headers=headers)
        if not answer.is_success:
            self.bad.append(f"{path}: {answer.status_code} {answer.text}")
        self.done[path] += 1
        told = answer.json()
        if "refresh" in told:
            self.kids[threading.current_thread().name] = kid(told["access"])
        return told

    def _tenant(self, clients, number: int):
        tokens = people.begin_session(self._plane, self._plane.user(f"tenant-{number}"))
        access, refreshed = tokens.access, tokens.refresh
        for turn in itertools.count(1):
            lease = self._ask(next(clients), "rent", access, public_key=KEY, patience=0)
            self._ask(next(clients), "release", access, lease=lease["id"])
            if turn % 3 == 0:
                told = self._ask(next(clients), "refresh", "", refresh=refreshed)
                access, refreshed = told["access"], told["refresh"]
            yield

    def _agent(self, clients, number: int):
        _node, credential = self._plane.join(f"beating-{number}")
        for seq in itertools.count(1):
            self._ask(next(clients), "workers/heartbeat", credential, boot_id="b", seq=seq)
            yield

    def _newcomer(self, clients, number: int):
        people.signup(self._plane, f"newcomer-{number}", "a long sentence 1")
        proof = {"name": f"newcomer-{number}", "password": "a long sentence 1"}
        while True:
            access = self._ask(next(clients), "login", "", **proof)["access"]
            lease = self._ask(next(clients), "rent", access, public_key=KEY, patience=0)
            self._ask(next(clients), "release", access, lease=lease["id"])
            yield

    def goes_on(self) -> None:
        before = self.done.copy()
        kinds = ("rent", "release", "refresh", "workers/heartbeat", "login")
        wait_for(lambda: self.bad or all(self.done[each] > before[each] for each in kinds))
        assert self.bad == []


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=in_test_all)])
@pytest.mark.parametrize("in_database", [True, False])
def test_no_request_fails_while_keys_are_replaced(plane, times, in_database, clock, monkeypatch):
    """Two servers that share the folder of keys and the database, as two computers would."""
    monkeypatch.setattr(files, "SIGNS_AFTER", 0.5)
    if in_database:
        keep_in_database(plane)
    url = plane.database.engine.url.render_as_string(hide_password=False)
    with contextlib.closing(Plane(url)) as second:
        for number in range(6):
            plane.ready(f"machine-{number}")
        first = plane.signing_keys[ACCESS].signing()
        with (
            serving(create_app(plane, options())) as one,
            serving(create_app(second, options())) as two,
            Load(plane, [one, two]) as load,
        ):
            load.goes_on()
            for _ in range(times):
                rotate(plane, wait=lambda _seconds: load.goes_on())
                load.goes_on()
                newest = plane.signing_keys[ACCESS].held().current.kid
                wait_for(lambda key=newest: load.bad or set(load.kids.values()) == {key})
                load.goes_on()
                with pytest.raises(RejectedError, match="still counts"):
                    rotate(plane)
                # The access tokens of before have come to their end.
                clock.ahead += ACCESS_SECONDS + 120
                load.goes_on()
        assert load.bad == []
        for one in (plane, second):
            assert first not in one.signing_keys[ACCESS].believed()
            assert one.signing_keys[INNER].signing().secret
