from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from essaim.model.errors import RejectedError
from essaim.model.school import Person
from essaim.plan.rosters import Standing, Student
from essaim.store.classes import Classes, Lesson
from essaim.store.rosters import Rosters


def coming(roster: str, *logins: str) -> list[Student]:
    return [
        Student(roster=roster, person=Person(login=login), machine=f"{roster}/{login}", run="r")
        for login in logins
    ]


def test_of_many_who_enrol_at_once_no_two_get_the_same_address(database):
    rosters = Rosters(database)

    def enrol(number: int) -> list[str]:
        logins = [f"s{each}" for each in range(10)]
        made = rosters.enrol("pve", coming(f"class-{number}", *logins), range(100, 160))
        return [student.address for student in made.values()]

    with ThreadPoolExecutor(6) as threads:
        given = [address for some in threads.map(enrol, range(6)) for address in some]
    assert len(set(given)) == len(given) == 60
    with pytest.raises(RejectedError, match="all 60 addresses"):
        rosters.enrol("pve", coming("late", "x"), range(100, 160))
    assert rosters.students("late") == {}
    # Another site has numbers of its own.
    assert rosters.enrol("other", coming("far", "x"), [100])["x"].address == "0.0.0.100"


def test_who_has_an_address_keeps_it_until_it_is_given_up(database):
    rosters = Rosters(database)
    first = rosters.enrol("pve", coming("promo", "alice", "bob"), range(1, 9))
    assert rosters.enrol("pve", coming("promo", "bob"), range(5, 9))["bob"] == first["bob"]
    rosters.release("pve", "promo/bob")
    assert rosters.students("promo")["bob"].address == ""
    assert rosters.enrol("pve", coming("promo", "carol"), range(1, 9))["carol"].address == "0.0.0.2"
    rosters.forget("pve", ["promo/carol", "promo/bob"])
    assert list(rosters.students("promo")) == ["alice"]


def test_an_address_is_exchanged_for_one_that_nobody_has(database):
    rosters = Rosters(database)
    logins = [f"s{each}" for each in range(6)]
    rosters.enrol("pve", coming("promo", *logins), range(100, 106))
    with ThreadPoolExecutor(6) as threads:
        them = [f"promo/{login}" for login in logins]
        given = list(threads.map(lambda its: rosters.move("pve", its, range(100, 112)), them))
    found = [student.address for student in rosters.students("promo").values()]
    assert found == given
    assert len(set(given)) == 6
    with pytest.raises(RejectedError, match="all 1 addresses"):
        rosters.move("pve", "promo/s0", [int(given[1].rpartition(".")[2])])
    assert rosters.students("promo")["s0"].address == given[0]
    rosters.halt("promo/s0", on=False)
    assert rosters.students("promo")["s0"].halted > 0
    rosters.stand("promo/s0", Standing.READY)
    assert rosters.students("promo")["s0"].halted > 0
    rosters.stand("promo/s0", Standing.READY, on=True)
    assert rosters.students("promo")["s0"].halted == 0


def test_how_it_stands_and_since_when(database):
    rosters = Rosters(database)
    rosters.enrol("pve", coming("promo", "alice"), [1])
    rosters.stand("promo/alice", Standing.READY)
    ready = rosters.of_machine("promo/alice")
    assert (ready.standing, bool(ready.made)) == (Standing.READY, True)
    rosters.stand("promo/alice", Standing.FAILED, "why")
    failed = rosters.of_machine("promo/alice")
    assert (failed.error, failed.made) == ("why", ready.made)
    assert failed.since >= ready.since
    rosters.unmade(["promo/alice"])
    assert rosters.of_machine("promo/alice").made == 0
    rosters.stand("promo/nobody", Standing.READY)
    assert rosters.of_machine("promo/nobody") is None
    assert [each.login for each in rosters.standing(Standing.FAILED)] == ["alice"]


def test_rosters_are_kept_and_dropped_with_all_that_is_theirs(database):
    rosters, classes = Rosters(database), Classes(database)
    rosters.put("promo", {"grace": 1})
    rosters.put("promo", {"grace": 2})
    assert (rosters.get("promo"), rosters.names()) == ({"grace": 2}, ["promo"])
    rosters.enrol("pve", coming("promo", "alice"), [1])
    classes.add_teacher("promo", "u-1")
    classes.put_lesson(Lesson("promo", "start", "07:45", 1))
    rosters.drop("promo")
    assert rosters.get("promo") is None
    assert rosters.students("promo") == {}
    assert (classes.teachers("promo"), classes.lessons()) == ([], [])


def test_a_code_serves_once(database):
    rosters, classes = Rosters(database), Classes(database)
    rosters.enrol("pve", coming("promo", "alice", "bob"), [1, 2])
    assert classes.claim("", "u-1") == ""  # what everybody has who was not invited
    classes.invite("promo", {"alice": "digest"})
    assert classes.claim("wrong", "u-1") == ""
    assert classes.claim("digest", "u-1") == "promo/alice"
    assert classes.claim("digest", "u-2") == ""
    assert [each.login for each in rosters.of_account("u-1")] == ["alice"]
    assert rosters.of_account("u-2") == []
    # A new code moves it: whoever lost their account asks for one.
    classes.invite("promo", {"alice": "another"})
    assert classes.claim("another", "u-2") == "promo/alice"
    assert rosters.of_account("u-1") == []


def test_teachers_and_what_they_teach(database):
    classes = Classes(database)
    classes.add_teacher("promo", "u-1")
    classes.add_teacher("promo", "u-1")
    classes.add_teacher("other", "u-1")
    assert (classes.teachers("promo"), classes.taught("u-1")) == (["u-1"], ["other", "promo"])
    classes.drop_teacher("promo", "u-1")
    assert (classes.teachers("promo"), classes.taught("u-1")) == ([], ["other"])


def test_of_many_who_see_a_lesson_due_one_begins_it(database):
    classes = Classes(database)
    classes.put_lesson(Lesson("promo", "start", "07:45", 5))
    classes.put_lesson(Lesson("promo", "stop", "18:30", 2**50))
    (due,) = classes.due()
    with ThreadPoolExecutor(4) as threads:
        took = list(threads.map(lambda _n: classes.move_lesson(due, 2**50), range(4)))
    assert took.count(True) == 1
    assert classes.due() == []
