from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from essaim.model.machines import Observed, Power
from essaim.model.names import MachineName
from essaim.model.school import Person
from essaim.model.stacks import Machine, Size
from essaim.plan.rosters import (
    DESKTOP,
    DESKTOP_GROUP,
    HOST,
    LOGIN,
    Seen,
    Standing,
    Student,
    decide,
    desktop_of,
    first_few,
    loses_most,
)

IMAGE, OLD = "d" * 64, "e" * 64
DAY = 86_400_000


def wanted(login: str, address: str = "10.0.0.9") -> Machine:
    return Machine(
        name=MachineName("promo", login),
        group="students",
        index=1,
        address=address,
        image="gui",
        size=Size(cores=1, memory=1),
        labels={
            LOGIN: login,
            HOST: f"vm-{login}.example.org",
            DESKTOP: "rdp:3389",
            DESKTOP_GROUP: "promo",
            "desktop.security": "any",
        },
    )


def student(login: str, standing=Standing.READY, *, since: int = 0, made: int = 1) -> Student:
    return Student(
        roster="promo",
        person=Person(login=login),
        machine=f"promo/{login}",
        address="10.0.0.9",
        standing=standing,
        since=since,
        made=made,
    )


def there(*logins: str, image: str = IMAGE) -> Seen:
    return Seen(
        machines={
            f"promo/{login}": Observed(
                name=MachineName("promo", login), power=Power.ON, address="", image=image
            )
            for login in logins
        }
    )


def plan(listed, known, seen, *, grace: float = 30 * 86_400, now: int = 0, reset: bool = False):
    return decide(
        {login: wanted(login) for login in listed},
        {each.login: each for each in known},
        seen,
        image=IMAGE,
        grace=grace,
        now=now,
        reset=reset,
    )


def verbs(decided) -> dict[str, str]:
    return {change.key: f"{change.action.value} {change.verb}" for change in decided.changes}


def test_who_is_new_is_enrolled_and_who_has_theirs_is_left_alone():
    decided = plan(["alice", "bob"], [student("bob")], there("bob"))
    assert verbs(decided) == {"alice": "+ enrol"}
    assert decided.kept == 1


def test_who_is_gone_is_retired_and_destroyed_after_the_grace():
    gone = plan([], [student("bob")], there("bob"))
    assert verbs(gone) == {"bob": "- withdraw"}
    retired = [student("bob", Standing.RETIRED, since=0)]
    resting = plan([], retired, there("bob"), now=29 * DAY)
    assert (resting.changes, resting.resting) == ((), ("bob",))
    assert verbs(plan([], retired, there("bob"), now=30 * DAY)) == {"bob": "- remove"}
    assert verbs(plan([], [student("bob")], there("bob"), grace=0)) == {"bob": "- remove"}


def test_who_comes_back_gets_the_same_machine_and_it_is_never_undone():
    decided = plan(["bob"], [student("bob", Standing.RETIRED)], there("bob"))
    assert verbs(decided) == {"bob": "~ mend"}


def test_a_machine_that_is_off_is_started_unless_somebody_stopped_it_or_its_node_is_away():
    def off(**detail: str) -> Seen:
        its = there("bob").machines["promo/bob"]
        return Seen(machines={"promo/bob": replace(its, power=Power.OFF, detail=detail)})

    assert verbs(plan(["bob"], [student("bob")], off())) == {"bob": "~ wake"}
    stopped = plan(["bob"], [replace(student("bob"), halted=7)], off())
    away = plan(["bob"], [student("bob")], off(note="node pve2 does not answer"))
    for left in (stopped, away):
        assert (left.changes, left.kept) == ((), 1)


def test_a_machine_that_vanished_is_made_again():
    assert verbs(plan(["bob"], [student("bob")], there())) == {"bob": "+ enrol"}


def test_what_was_begun_and_never_ready_may_be_undone_and_what_was_ready_may_not():
    fresh = student("bob", Standing.COMING, made=0)
    assert verbs(plan(["bob"], [fresh], there("bob"))) == {"bob": "+ enrol"}
    worked_on = student("bob", Standing.COMING, made=7)
    assert verbs(plan(["bob"], [worked_on], there("bob"))) == {"bob": "~ mend"}


def test_a_machine_of_another_image_is_kept_unless_asked():
    seen = there("bob", image=OLD)
    kept = plan(["bob"], [student("bob")], seen)
    assert (kept.changes, kept.outdated, kept.kept) == ((), ("bob",), 1)
    assert verbs(plan(["bob"], [student("bob")], seen, reset=True)) == {"bob": "~ reset"}


def test_who_gave_theirs_back_gets_none_and_is_forgotten_with_the_roster():
    without = [student("bob", Standing.WITHOUT)]
    assert plan(["bob"], without, there()).without == ("bob",)
    assert plan([], without, there()).forgotten == ("bob",)


def test_what_the_servers_do_not_know_is_mended():
    full = {
        "named": {"vm-bob.example.org": "10.0.0.9"},
        "admitted": {"10.0.0.9"},
        "published": {("promo", "vm-bob")},
    }
    for lack, reason in (
        ({}, ""),
        ({"named": {}}, "no name in DNS"),
        ({"named": {"vm-bob.example.org": "10.0.0.8"}}, "no name in DNS"),
        ({"admitted": set()}, "not in DHCP"),
        ({"published": set()}, "no desktop"),
    ):
        seen = Seen(machines=there("bob").machines, **{**full, **lack})
        decided = plan(["bob"], [student("bob")], seen)
        assert [change.reason for change in decided.changes] == ([reason] if reason else [])


def test_a_roster_that_lost_most_of_its_rows_is_looked_at_twice():
    known = {name: student(name) for name in "abcdefgh"}
    seen = there(*known)
    assert loses_most(plan("abc", known.values(), seen), known)
    assert not loses_most(plan("abcdef", known.values(), seen), known)


def test_a_desktop_is_told_all_that_its_machine_says():
    desktop = desktop_of(wanted("bob"))
    assert (desktop.name, desktop.group, desktop.people) == ("vm-bob", "promo", ("bob",))
    assert (desktop.protocol, desktop.port) == ("rdp", 3389)
    assert desktop.settings == {"security": "any"}


def test_many_names_are_cut_short():
    assert first_few(["a", "b"]) == "a, b"
    assert first_few(list("abcdefg")) == "a, b, c, d, e and 2 more"


LOGINS = st.sampled_from("abcdef")


@given(
    listed=st.sets(LOGINS),
    known=st.dictionaries(LOGINS, st.tuples(st.sampled_from(Standing), st.booleans())),
    seen=st.sets(LOGINS),
    now=st.integers(0, 60 * DAY),
)
def test_carried_out_there_is_nothing_left_to_do(listed, known, seen, now):
    students = [student(login, its[0], made=its[1]) for login, its in known.items()]
    decided = plan(listed, students, there(*seen), now=now)
    after = {each.login: each for each in students if each.login not in decided.forgotten}
    machines = set(seen)
    for change in decided.changes:
        if change.verb in ("enrol", "mend"):
            after[change.key] = student(change.key, since=now)
            machines.add(change.key)
        elif change.verb == "withdraw":
            after[change.key] = student(change.key, Standing.RETIRED, since=now)
        else:
            after.pop(change.key)
            machines.discard(change.key)
    again = plan(listed, after.values(), there(*machines), now=now)
    assert again.changes == ()
    # Nobody who is listed is ever taken away, nobody who is not is ever given anything.
    for change in decided.changes:
        assert (change.key in listed) == (change.verb in ("enrol", "mend"))
