"""What a person sees who opens the server's address in a browser."""

from __future__ import annotations

import io
import re
import subprocess
import zipfile

import httpx
import pytest

from api.rig import serving
from essaim.api.app import create_app
from essaim.api.bruno import collection
from essaim.api.options import Gateway, Options
from essaim_lab.computer import find

OPTIONS = Options(
    public_url="https://lab.example.org", gateway=Gateway(host="lab.example.org", port=2222)
)


@pytest.fixture(scope="module")
def address():
    with serving(create_app(None, OPTIONS)) as found:
        yield found


@pytest.fixture(scope="module")
def browse(address, tmp_path_factory):
    """Open a page in a real browser; gives the page as it is once its scripts have run."""
    chromium = find("chromium", "chromium")

    def open_page(path: str) -> str:
        words = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
            "--virtual-time-budget=20000", "--dump-dom", f"{address}{path}",
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    return open_page


@pytest.mark.parametrize(
    ("accept", "tongue", "sentence"),
    [
        ("en-GB", "en", "This server lends machines"),
        ("fr-FR,fr;q=0.9", "fr", "Ce serveur prête des machines"),
    ],
)
def test_the_first_page_says_what_this_is_and_where_to_go_on(address, accept, tongue, sentence):
    answer = httpx.get(f"{address}/", headers={"Accept-Language": accept})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-language"] == tongue
    assert sentence in answer.text
    assert "--server https://lab.example.org" in answer.text
    assert "@lab.example.org -p 2222" in answer.text
    for path in re.findall(r'href="(/[^"]*)"', answer.text):
        assert httpx.get(f"{address}{path}").status_code == 200, path


def test_the_first_page_repeats_no_markup_from_a_request():
    with serving(create_app(None)) as address:
        host = '"><script>alert(1)</script>'
        answer = httpx.get(f"{address}/", headers={"Host": host})
        assert "<script>" not in answer.text


def test_pages_load_nothing_from_elsewhere(address):
    for path in ("/", "/docs"):
        answer = httpx.get(f"{address}{path}")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "http:" not in policy
        assert "https:" not in policy
        assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)


def test_other_files_are_not_given_out(address):
    for name in ("home.en.html", "..%2fapp.py", "redoc.standalone.js"):
        assert httpx.get(f"{address}/site/{name}").status_code in (404, 422)


def test_the_reference_shows_every_operation_in_a_browser(browse, address):
    page = browse("/docs")
    for path in ("/api/rent", "/api/login", "/api/workers/register", "/metrics"):
        assert f'data-path="{path}"' in page, page[:2000]
    assert "Rent machines" in page


def test_the_collection_for_bruno_has_every_operation(address):
    document = httpx.get(f"{address}/openapi.json").json()
    names = [each["operationId"] for item in document["paths"].values() for each in item.values()]
    with zipfile.ZipFile(io.BytesIO(httpx.get(f"{address}/bruno.zip").content)) as archive:
        files = {path.rpartition("/")[2].removesuffix(".bru") for path in archive.namelist()}
    assert set(names) <= files
    assert len(names) == len(set(names))


def test_the_collection_holds_no_secret():
    texts = "".join(collection(create_app(None).openapi()).values())
    assert "vars:secret" in texts
    assert '"password": "{{password}}"' in texts
