"""Reservations of a Kea whose database is a real PostgreSQL."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from databases import find, free_port
from essaim.model.errors import RejectedError, TakenError, TransientError
from essaim.model.school import Host
from essaim.servers.kea import Kea, Settings
from patience import in_test_all
from servers.network import CIDR
from servers.rivals import winner_of_eight

pytestmark = in_test_all

HOST = Host(name="vm.example.org", address="10.77.0.9", mac="bc:24:11:00:00:09")


@pytest.fixture(scope="module")
def settings(servers) -> Settings:
    find("kea-admin", "kea-admin")
    url = sa.make_url(servers("postgresql").new(empty=True))
    plain = f"postgresql://postgres@127.0.0.1:{url.port}/{url.database}"
    script = Path("/usr/share/kea/scripts/pgsql/dhcpdb_create.pgsql")
    words = [find("psql", "postgresql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", script, plain]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Settings(database=plain, subnets={7: CIDR})


@pytest.fixture
def kea(settings):
    opened = Kea(settings)
    yield opened
    opened.dismiss(HOST)
    opened.close()


def test_a_host_is_admitted_and_dismissed_as_often_as_one_likes(kea):
    kea.dismiss(HOST)
    kea.admit(HOST)
    kea.admit(HOST)
    assert kea.admitted() == [HOST]
    kea.dismiss(HOST)
    assert kea.admitted() == []


def test_of_eight_cards_that_want_an_address_at_once_one_gets_it(kea):
    winner = winner_of_eight(kea, HOST)
    assert kea.admitted() == [winner]
    kea.dismiss(winner)


def test_a_card_with_another_address_is_refused(kea):
    kea.admit(HOST)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: kea.admit(HOST), range(8)))
    with pytest.raises(TakenError):
        kea.admit(replace(HOST, address="10.77.0.10"))
    assert kea.admitted() == [HOST]


def test_what_is_wrong_is_told(settings):
    for wrong, error, said in (
        (settings.database.replace("/essaim_", "/nowhere_"), RejectedError, "is not there"),
        (f"postgresql://postgres@127.0.0.1:{free_port()}/kea", TransientError, "not answer"),
        (settings.database.rpartition("/")[0] + "/postgres", RejectedError, "is not Kea's"),
    ):
        kea = Kea(replace(settings, database=wrong))
        with pytest.raises(error, match=said):
            kea.admitted()
        kea.close()
