from __future__ import annotations

import pytest

from essaim.config.people import check_people, machine_of, read_people
from essaim.model.errors import InvalidError
from essaim.model.school import Person


@pytest.fixture
def roster(tmp_path):
    def write(text: str, encoding: str = "utf-8"):
        file = tmp_path / "promo.csv"
        file.write_bytes(text.encode(encoding))
        return file

    return write


def wrong(file) -> str:
    with pytest.raises(InvalidError) as caught:
        read_people(file)
    return str(caught.value)


def test_only_the_login_must_be_there(roster):
    assert read_people(roster("login\nalice\n\nbob\n")) == [
        Person(login="alice"),
        Person(login="bob"),
    ]


def test_a_spreadsheet_in_french_is_read_as_it_comes(roster):
    text = "\ufeffIdentifiant;Nom;Courriel;Classe;# remarque\nzoé;x;y;z;\n"
    assert "promo.csv:2: 'zoé' is not a login" in wrong(roster(text))
    text = "\ufeffIdentifiant;Nom;Courriel;Classe;# remarque\nzoe;Zoé;zoe@example.org;a;gentille\n"
    assert read_people(roster(text)) == [
        Person(login="zoe", name="Zoé", mail="zoe@example.org", group="a")
    ]


def test_what_spreadsheets_add_is_understood(roster):
    text = "sep=;\r\nlogin;Prénom;nom;;\r\nzoe;Zoé;Doe;;\r\nbob;;Roe;;\r\n"
    assert read_people(roster(text)) == [
        Person(login="zoe", name="Zoé Doe"),
        Person(login="bob", name="Roe"),
    ]
    said = wrong(roster("sep=;\nlogin;\nzoe;what\n"))
    assert "promo.csv:3: 'what' stands in a column without a name" in said


def test_everything_wrong_is_told_at_once_with_its_line(roster):
    said = wrong(
        roster("login,uid,mail,home\nAlice,,,\nbob,x,,\nbob,1,at,\nbob,2,,\neve,3,,home\n")
    )
    assert "promo.csv:2: 'Alice' is not a login (did you mean alice?)" in said
    assert "promo.csv:3: uid 'x' is not a number of a user" in said
    assert "promo.csv:4: 'at' is not an address for mail" in said
    assert "promo.csv:5: bob is there twice (first on line 4)" in said
    assert "promo.csv:6: home 'home' must begin with a slash" in said


def test_columns_are_known_or_left_out_on_purpose(roster):
    said = wrong(roster("logn,name\nalice,Alice\n"))
    assert "promo.csv:1: unknown column 'logn' (did you mean login?" in said
    assert "twice" in wrong(roster("login,login\na,b\n"))
    assert "there is no column login" in wrong(roster("name\nAlice\n"))
    assert "the file is empty (its first line says login,name" in wrong(roster(""))
    assert "the first line names no columns (put login," in wrong(roster("alice,a\nbob,b\n"))
    assert "3 values, but 2 columns" in wrong(roster("login,name\na,b,c\n"))


def test_files_that_cannot_be_read_are_explained(roster, tmp_path):
    said = wrong(roster("login\nzoé\n", "latin-1"))
    assert "promo.csv:2: not UTF-8 (as WINDOWS-1252?)" in said
    assert "iconv -f WINDOWS-1252 -t UTF-8 promo.csv" in said
    assert "iconv -f UTF-16" in wrong(roster("login\nzoe\n", "utf-16"))
    roster("login\na\n")
    assert "did you mean promo.csv?" in wrong(tmp_path / "prmo.csv")
    said = wrong(roster('login,name\nbob,B\nzoe,"Z\nmia,M\n'))
    assert 'promo.csv:3: not CSV: a quotation mark (") is opened here and never closed' in said


def test_two_logins_never_share_a_machine(roster):
    assert "would have the same machine j-doe" in wrong(roster("login\nj.doe\nj_doe\n"))


@pytest.mark.parametrize(
    ("login", "machine"),
    [("alice", "alice"), ("jean.dupont", "jean-dupont"), ("21900123", "s-21900123"), ("x_", "x")],
)
def test_a_machine_is_called_after_its_login(login, machine):
    assert machine_of(login) == machine


def test_people_of_a_directory_are_checked_likewise():
    assert check_people([Person(login="alice")], "cn=promo") == [Person(login="alice")]
    with pytest.raises(InvalidError, match="is not a login"):
        check_people([Person(login="Alice Martin")], "cn=promo")
