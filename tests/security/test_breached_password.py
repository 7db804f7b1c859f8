"""A password that thieves have is no password, wherever the administrator's list comes from."""

from __future__ import annotations

import contextlib
import hashlib

import httpx
import pytest

from api.rig import PASSWORD, is_problem, serving
from essaim.api.app import create_app
from essaim.bootstrap import App
from essaim.cli.plane import ApiServer, listening
from essaim.model.errors import SetupError
from essaim.store.breached_passwords import BreachedPasswords
from essaim.usecases.credentials import hash_password

STOLEN = "purple elephant stapler"
OTHERS = [f"stolen number {n}" for n in range(500)]


def sha1(password: str) -> str:
    return hashlib.sha1(password.encode(), usedforsecurity=False).hexdigest().upper()


def range_folder(place, passwords, ending=""):
    """As the range API answers: files by prefix, lines in any order, CRLF, some of them padding."""
    place.mkdir()
    lines: dict[str, list[str]] = {}
    for password in passwords:
        digest = sha1(password)
        lines.setdefault(digest[:5], [f"{'0' * 35}:0"]).append(f"{digest[5:]}:17")
    padded = sha1(PASSWORD)
    lines.setdefault(padded[:5], []).append(f"{padded[5:]}:0")
    for prefix, its in lines.items():
        (place / f"{prefix}{ending}").write_text("\r\n".join(its))
    return place


def sorted_file(place, passwords, end="\n", upper=True):
    hashes = sorted(f"{sha1(each)}:{len(each)}" for each in passwords)
    text = end.join(hashes) + end
    place.write_bytes((text if upper else text.lower()).encode())
    return place


@pytest.fixture(params=["folder", "folder of .txt", "file", "file of Windows"])
def stolen(request, tmp_path):
    place, them = tmp_path / "stolen", [*OTHERS, STOLEN]
    if request.param == "file":
        return sorted_file(place, them)
    if request.param == "file of Windows":
        return sorted_file(place, them, end="\r\n", upper=False)
    return range_folder(place, them, ".txt" if "txt" in request.param else "")


def test_every_stolen_one_is_found_and_no_other(stolen):
    breached = BreachedPasswords(stolen)
    assert all(breached.contains(each) for each in [*OTHERS, STOLEN])
    assert not any(breached.contains(f"{each}!") for each in [*OTHERS, STOLEN])
    assert not breached.contains(PASSWORD), "padding is no find"


def test_an_empty_list_has_none(tmp_path):
    (tmp_path / "none").touch()
    assert not BreachedPasswords(tmp_path / "none").contains(STOLEN)


def test_nobody_chooses_a_stolen_one(stolen, tmp_path):
    environ = {
        "ESSAIM_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "ESSAIM_SIGNUP": "open",
        "ESSAIM_BREACHED_PASSWORDS": str(stolen),
    }
    with contextlib.closing(App(environ)) as app, serving(create_app(app)) as address:
        app.people.add("ada", hash_password(PASSWORD))
        with httpx.Client(base_url=address, timeout=60) as client:
            new = {"name": "eve", "password": STOLEN}
            said = is_problem(client.post("/api/signup", json=new), 409, "weak")
            assert "stolen" in said["detail"]
            ada = {"name": "ada", "password": PASSWORD}
            token = client.post("/api/login", json=ada).json()["access"]
            headers = {"Authorization": f"Bearer {token}"}
            # Whatever else a change of one's password asks for, this one is refused for itself.
            body = {"password": STOLEN}
            answer = client.patch("/api/users/ada", json=body, headers=headers)
            assert answer.status_code == 409
            assert client.post("/api/login", json=ada).status_code == 200


def test_a_list_that_is_not_there_is_said_at_the_start(tmp_path):
    environ = {
        "ESSAIM_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "ESSAIM_BREACHED_PASSWORDS": str(tmp_path / "nowhere"),
    }
    with (
        contextlib.closing(App(environ)) as app,
        contextlib.closing(listening("127.0.0.1", 0)) as listener,
        pytest.raises(SetupError, match="no such file or folder"),
    ):
        ApiServer(app, [listener], gateway=("localhost", 2222))
