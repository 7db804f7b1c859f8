"""Of any number who ask at once, one gets the turn; what is marked has one name until unmarked."""

from __future__ import annotations

from essaim.store.turns import Turns
from usecases.plane import together


def test_one_of_many_gets_the_turn(database):  # R-D7
    many = [Turns(database) for _ in range(6)]
    assert sum(together(lambda each: each.take("round", 3600), many)) == 1
    assert sum(together(lambda each: each.take("other", 3600), many)) == 1
    assert not many[0].take("round", 3600)
    assert many[0].take("round", 0)


def test_what_is_so_has_one_name_until_it_is_no_longer(database):  # R-D7
    many = [Turns(database) for _ in range(6)]
    assert many[0].marked("blind") == ""
    (name,) = set(together(lambda each: each.mark("blind"), many))
    assert many[0].marked("blind") == name
    many[0].unmark("blind", "another time")
    assert many[1].marked("blind") == name
    many[0].unmark("blind", name)
    assert many[1].marked("blind") == ""
