"""Where packages come from is read from the computer, never written down here."""

from __future__ import annotations

import pytest

from essaim.images import sources
from essaim.images.sources import MIRROR_VARIABLE, read_sources, sources_for
from essaim.model.errors import SetupError

ONE_LINE = """
# deb http://mirror.test/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] http://mirror.test/debian bookworm main contrib
deb-src http://mirror.test/debian bookworm main
deb http://mirror.test/debian bookworm-updates main # later
deb http://other.test/docker bookworm stable
"""
DEB822 = """
Types: deb deb-src
# a remark
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/d.gpg

Types: deb
URIs: http://mirror.test/security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY865UxYJKwYBBAHaRw8BAQdAd7Z0srwuhlB6JKFkcf4HU4SSS/xcRfwEQWzr

Enabled: no
Types: deb
URIs: http://mirror.test/debian
Suites: bookworm-proposed-updates
Components: main
"""


@pytest.fixture
def apt(tmp_path, monkeypatch):
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_one_line_sources_are_read(apt):
    (apt / "sources.list").write_text(ONE_LINE)
    assert sources_for("bookworm", {}, apt) == [
        "deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror.test/debian bookworm main contrib",
        "deb http://mirror.test/debian bookworm-updates main",
    ]


def test_deb822_sources_are_read(apt):
    (apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert sources_for("bookworm", {}, apt) == [
        "deb [signed-by=/usr/share/keyrings/d.gpg] http://mirror.test/debian bookworm main",
        "deb [signed-by=/usr/share/keyrings/d.gpg] http://mirror.test/debian bookworm-updates main",
        "deb http://mirror.test/security bookworm-security main",
    ]


def test_files_apt_would_not_read_are_left_alone(apt):
    (apt / "sources.list.d" / "old.sources.disabled").write_text(DEB822)
    assert list(read_sources(apt)) == []


def test_another_release_comes_from_the_same_mirror(apt, monkeypatch):
    (apt / "sources.list").write_text(ONE_LINE)
    monkeypatch.setattr(sources, "_own_suite", lambda: "bookworm")
    assert sources_for("trixie", {}, apt)[1] == "deb http://mirror.test/debian trixie-updates main"


def test_without_a_mirror_the_remedy_is_named(apt, monkeypatch):
    monkeypatch.setattr(sources, "_own_suite", lambda: "")
    with pytest.raises(SetupError) as caught:
        sources_for("bookworm", {}, apt)
    assert MIRROR_VARIABLE in caught.value.hint


def test_what_the_user_says_comes_first(apt, monkeypatch):
    (apt / "sources.list").write_text(ONE_LINE)
    monkeypatch.setenv(MIRROR_VARIABLE, "http://near.test/debian")
    assert sources_for("bookworm", {}, apt) == ["deb http://near.test/debian bookworm main"]
    settings = {"mirror": "http://own.test/debian", "components": ["main", "contrib"]}
    assert sources_for("sid", settings, apt) == ["deb http://own.test/debian sid main contrib"]
