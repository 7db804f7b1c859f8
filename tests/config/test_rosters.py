from __future__ import annotations

from pathlib import Path

import pytest

from essaim.config.people import read_people
from essaim.config.rosters import (
    addresses,
    compose_roster,
    read_grace,
    roster_from_json,
    roster_to_json,
)
from essaim.model.errors import EssaimError, InvalidError

EXAMPLES = Path(__file__).parents[2] / "examples" / "school"


def compose(tmp_path, text: str = "", **options):
    (tmp_path / "promo.csv").write_text("login\nalice\n")
    if text:
        (tmp_path / "promo.yaml").write_text(text)
    return compose_roster(str(tmp_path / "promo.csv"), options)


def test_a_csv_alone_is_enough(tmp_path):
    roster = compose(tmp_path)
    assert (roster.name, roster.site.name, roster.image.name) == ("promo", "local", "base")
    assert roster.grace == 30 * 86_400
    assert roster.protocol == ""


def test_options_count_more_than_the_file(tmp_path):
    text = "site: local\nsize: medium\ngrace: 12h\ndesktop: {protocol: vnc}\n"
    roster = compose(tmp_path, text, size="tiny", name="other", site="")
    assert (roster.name, roster.size.cores, roster.grace) == ("other", 1, 12 * 3600)
    assert (roster.protocol, roster.port) == ("vnc", 5901)


def test_it_is_kept_and_read_back_without_loss(tmp_path):
    text = "domain: example.org\nprefix: vm-\ndesktop: {settings: {security: any}}\n"
    roster = compose(tmp_path, text + "account: directory\n")
    assert roster.account == "directory"
    assert roster_from_json(roster_to_json(roster)) == roster


def test_one_that_an_earlier_version_kept_has_local_accounts(tmp_path):
    body = roster_to_json(compose(tmp_path))
    del body["account"]
    assert roster_from_json(body).account == "local"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("grase: 3d\n", "promo.yaml:1: unknown key grase (did you mean grace?)"),
        ("image: bsae\n", "promo.yaml:1: there is no image bsae (did you mean base?)"),
        ("site: locl\n", "no site called locl"),
        ("size: smal\n", "promo.yaml:1: there is no size smal (did you mean small?)"),
        ("grace: soon\n", "promo.yaml:1: grace must be a time"),
        ("name: x\nnetwork: {cidr: 10.0.0.0/33}\n", "promo.yaml:2: network.cidr must be a network"),
        ("network: {cidr: 10.0.0.0/29}\n", "has no room for machines"),
        ("network: {cidr: 10.0.0.0/24, range: 10.1.0.1-10.1.0.9}\n", "is not a range of"),
        ("domain: a b\n", "domain must be a domain"),
        ("account: ldap\n", "account must be local, directory or none"),
        ("desktop: {protocol: rpd}\n", "must be rdp, vnc or ssh"),
        ("name: Promo!\n", "cannot name a roster"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(tmp_path, text, says):
    with pytest.raises(EssaimError) as caught:
        compose(tmp_path, text)
    assert says in str(caught.value)


def test_addresses_are_those_of_the_range(tmp_path):
    text = "network: {cidr: 10.0.0.0/24, range: 10.0.0.20-10.0.0.22}\n"
    assert len(list(addresses(compose(tmp_path, text)))) == 3


def test_grace_is_read_as_people_write_it():
    assert [read_grace(text) for text in ("0", "2", "1.5d", "3h")] == [0, 172_800, 129_600, 10_800]
    with pytest.raises(InvalidError, match="must be a time"):
        read_grace("x")


def test_the_examples_are_right():
    people = read_people(EXAMPLES / "promo.csv")
    assert (len(people), people[0].login, people[-1].uid) == (600, "s001", 600_000_600)
    few = compose_roster(str(EXAMPLES / "few.csv"))
    assert (few.site.driver, few.grace) == ("sandbox", 0)
    promo = compose_roster(str(EXAMPLES / "promo.csv"))
    # A template of the cluster needs no file of its own.
    assert (promo.site.driver, promo.image.builder) == ("proxmox", "template")
    assert promo.image.settings == {"template": "debian-gui"}
    assert len(list(addresses(promo))) > 600
