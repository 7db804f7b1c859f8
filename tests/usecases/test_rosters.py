"""Rosters on a site of files, with the real store, engine and workflows."""

from __future__ import annotations

import dataclasses
import json
import time
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from essaim.config.rosters import addresses, roster_to_json
from essaim.controllers.schooling import Schooling
from essaim.model.errors import ClashError, HeldError, InvalidError, RejectedError, UnknownError
from essaim.model.machines import Power
from essaim.model.names import MachineName
from essaim.model.school import Person
from essaim.plan.rosters import Standing, Student
from essaim.store.classes import Lesson
from essaim.store.schema import student
from essaim.usecases import classes, seats, students
from essaim.usecases import rosters as use
from filed import HOST_KEY, wait_for
from schoolplane import people, plane, roster

#: Two keys that differ in one letter.
KEY, OTHER = HOST_KEY, HOST_KEY.replace("Yy2k", "Yy3k")


@pytest.fixture
def school(new_database, tmp_path):
    with plane(new_database("sqlite"), tmp_path / "site") as made:
        yield made


def test_everybody_gets_a_machine_and_again_there_is_nothing_to_do(school):
    planned = school.apply(roster(), people("alice", "bob"))
    assert [change.verb for change in planned.decided.changes] == ["enrol", "enrol"]
    seen = school.site.seen()
    assert {name: its["power"] for name, its in seen["machines"].items()} == {
        "promo/alice": "on",
        "promo/bob": "on",
    }
    assert seen["names"] == {
        "vm-alice.school.example.org": "10.60.0.10",
        "vm-bob.school.example.org": "10.60.0.11",
    }
    assert sorted(seen["addresses"]) == ["10.60.0.10", "10.60.0.11"]
    assert seen["desktops"]["promo/vm-bob"] == ["rdp", 3389, ["bob"]]
    again = school.apply(roster(), people("alice", "bob"))
    assert (again.decided.changes, again.decided.kept) == ((), 2)


def test_nothing_to_change_costs_one_listing_of_each_server(school):
    them = people(*(f"s{number:03}" for number in range(600)))
    there(school, them)
    began = time.process_time()
    again = school.apply(roster(), them)
    assert time.process_time() - began < 3.0
    assert (again.decided.changes, again.decided.kept) == ((), 600)
    assert sorted(school.site.calls()) == ["admitted", "named", "observe", "published"]


def there(school, them) -> None:
    """As if all of them had been made: 600 real runs on files would take long."""
    wanted = roster()
    school.rosters.put("promo", roster_to_json(wanted))
    coming = [
        Student(roster="promo", person=who, machine=f"promo/{who.login}", run="r") for who in them
    ]
    placed = school.rosters.enrol("pve", coming, addresses(wanted)).values()
    ready = sa.update(student).values(standing="ready", made_at=1)
    school.database.write(lambda c: c.execute(ready))
    site = school.site
    with site.driver.changed() as machines, site.names.changed() as names:
        for each in placed:
            machines[each.machine] = {
                "power": "on", "address": each.address, "image": "d" * 64, "boot": "1",
                "disk": "new", "kept": {},
            }  # fmt: skip
            names[f"vm-{each.login}.school.example.org"] = each.address
    with site.addresses.changed() as admitted, site.desktops.changed() as desktops:
        for each in placed:
            admitted[each.address] = "02:00:00:00:00:01"
            desktops[f"promo/vm-{each.login}"] = ["rdp", 3389, [each.login]]


def test_servers_that_a_site_does_not_have_are_left_out(school):
    school.lacks = {"names", "addresses", "desktops"}
    school.apply(roster(), people("alice"))
    assert school.states() == {"alice": "ready"}
    seen = school.site.seen()
    assert [seen[part] for part in ("names", "addresses", "desktops")] == [{}, {}, {}]
    assert school.apply(roster(), people("alice")).decided.changes == ()


def test_a_row_that_must_fail_is_wholly_undone_and_the_others_are_not(school):
    school.site.names.file.with_suffix(".refuses").write_text("bob")
    school.apply(roster(), people("alice", "bob", "carol"))
    assert school.states() == {"alice": "ready", "bob": "failed", "carol": "ready"}
    assert "bob" not in str(school.site.seen())
    bob = school.rosters.students("promo")["bob"]
    said = "names refuses vm-bob.school.example.org (ask its administrator)"
    assert (bob.address, bob.error) == ("", said)
    rows = {row.login: row for row in students.table(school, "promo")}
    assert rows["bob"].failed == said
    assert rows["bob"].todo == "essaim students retry promo bob"
    # Its address is free for others, and retrying makes what failed and nothing else.
    school.site.names.file.with_suffix(".refuses").unlink()
    school.site.driver.calls.clear()
    planned = use.retry(school, "promo")
    assert [change.key for change in planned.decided.changes] == ["bob"]
    school.courier.wait(use.apply(school, planned), timeout=120)
    assert school.states()["bob"] == "ready"
    assert school.site.driver.calls.count("create") == 2  # begun, and asked again


def test_who_leaves_is_retired_and_comes_back_to_the_same_machine(school):
    school.apply(roster(), people("alice", "bob"))
    school.site.driver.write("promo/bob", "thesis")
    before = school.rosters.students("promo")["bob"]
    school.apply(roster(), people("alice"))
    assert school.states() == {"alice": "ready", "bob": "retired"}
    seen = school.site.seen()
    assert seen["machines"]["promo/bob"]["power"] == "off"
    assert seen["machines"]["promo/bob"]["account"] is None, "locked before it was turned off"
    assert "bob" not in str([seen["names"], seen["desktops"]])
    assert before.address not in seen["addresses"]
    # Nobody else gets the address meanwhile.
    school.apply(roster(), people("alice", "carol"))
    assert school.rosters.students("promo")["carol"].address != before.address
    school.apply(roster(), people("alice", "bob", "carol"))
    assert school.rosters.students("promo")["bob"].address == before.address
    assert school.site.seen()["machines"]["promo/bob"] | {"boot": ""} == {
        "power": "on", "address": before.address, "image": "d" * 64, "boot": "",
        "disk": "thesis", "kept": {},
        "account": ["local", "bob", "", "", "Bob", "ssh-ed25519 AAAA plane"],
    }  # fmt: skip


def with_key(*logins: str, key: str) -> list[Person]:
    return [dataclasses.replace(person, key=key) for person in people(*logins)]


def keys_on(school, login: str = "alice") -> list[str]:
    return school.site.seen()["machines"][f"promo/{login}"]["account"][-1].splitlines()[1:]


def test_another_key_in_the_roster_is_put_on_the_machine_and_the_students_own_counts_more(school):
    school.apply(roster(), with_key("alice", key=KEY))
    assert keys_on(school) == [KEY]
    planned = school.apply(roster(), with_key("alice", key=OTHER))
    assert [(c.verb, c.reason) for c in planned.decided.changes] == [("wake", "another key")]
    assert keys_on(school) == [OTHER]
    assert school.apply(roster(), with_key("alice", key=OTHER)).decided.changes == ()
    # What an earlier version reads of a person has no field it does not know.
    row = school.database.read(lambda c: c.execute(sa.text("SELECT person FROM student")).scalar())
    assert "key" not in json.loads(row)
    school.rosters.access.put_own_key("promo", "alice", KEY)
    assert school.apply(roster(), with_key("alice", key="")).decided.changes == ()
    assert school.rosters.one("promo", "alice").key == KEY


def test_a_key_that_comes_while_the_machine_is_off_is_taken_at_the_next_start(school):
    school.apply(roster(), with_key("alice", key=KEY))
    school.rosters.halt("promo/alice", on=False)
    school.site.driver.stop(MachineName("promo", "alice"))
    assert school.apply(roster(), with_key("alice", key=OTHER)).decided.changes == ()
    student = school.rosters.one("promo", "alice")
    seats.begin(school, seats.Seat(roster(), student, own=True), "start")
    school.settle("alice")
    assert keys_on(school) == [OTHER]


def test_an_account_that_cannot_be_made_leaves_the_machine_is_told_and_retried(school):
    refuses = school.site.driver.file.with_suffix(".refuses")
    refuses.write_text("account alice")
    school.apply(roster(), people("alice", "bob"))
    assert school.states() == {"alice": "ready", "bob": "ready"}
    alice, bob = students.table(school, "promo")
    assert (alice.state, bob.failed) == ("ready", "")
    assert "refuses account alice" in alice.failed
    assert alice.todo == "essaim students retry promo alice"
    refuses.unlink()
    planned = use.retry(school, "promo")
    assert [(c.machine, c.verb) for c in planned.decided.changes] == [("promo/alice", "wake")]
    assert school.courier.wait(use.apply(school, planned), timeout=120)
    assert students.table(school, "promo")[0].failed == ""


@pytest.mark.parametrize(("account", "made"), [("directory", "directory"), ("none", None)])
def test_accounts_of_a_directory_get_a_key_alone_and_none_gets_nothing(school, account, made):
    school.apply(roster(account=account), with_key("alice", key=KEY))
    found = school.site.seen()["machines"]["promo/alice"].get("account")
    assert (found and found[0]) == made


def test_a_student_who_returns_keeps_their_work_when_a_server_fails(school):
    school.apply(roster(), people("alice"))
    school.site.driver.write("promo/alice", "thesis")
    school.apply(roster(), [])
    school.site.desktops.file.with_suffix(".refuses").write_text("alice")
    school.apply(roster(), people("alice"))
    assert school.states() == {"alice": "failed"}
    assert school.site.seen()["machines"]["promo/alice"]["disk"] == "thesis"
    school.site.desktops.file.with_suffix(".refuses").unlink()
    school.apply(roster(), people("alice"))
    assert school.states() == {"alice": "ready"}
    assert school.site.seen()["machines"]["promo/alice"]["disk"] == "thesis"


def test_without_grace_who_leaves_is_gone_at_once_and_with_the_last_everything(school):
    school.apply(roster(), people("alice", "bob"))
    school.apply(roster(), people("alice"), grace=0.0)
    assert school.states() == {"alice": "ready"}
    assert "promo/bob" not in school.site.driver.seen()
    stack, _lab = use_stored(school)
    assert [str(machine.name) for machine in stack.machines] == ["promo/alice"]
    school.apply(roster(), [], grace=0.0)
    assert not any(school.site.seen().values())
    assert school.stacks.list_stacks() == []


def use_stored(school):
    from essaim.usecases.stacks import stored_stack

    return stored_stack(school, "promo")


def test_addresses_that_others_have_are_not_given_out(school):
    with school.site.addresses.changed() as admitted:
        admitted["10.60.0.10"] = "aa:bb:cc:dd:ee:ff"
    with school.site.names.changed() as names:
        names["printer.school.example.org"] = "10.60.0.11"
    school.apply(roster(), people("alice"))
    assert school.rosters.students("promo")["alice"].address == "10.60.0.12"
    assert school.site.seen()["addresses"]["10.60.0.10"] == "aa:bb:cc:dd:ee:ff"


def test_an_address_that_somebody_else_was_quicker_with_is_exchanged(school):
    planned = use.plan(school, roster(), people("alice", "bob"))
    with school.site.addresses.changed() as addresses_:
        addresses_["10.60.0.10"] = "02:ff:00:00:00:01"
    assert school.courier.wait(use.apply(school, planned), timeout=120)
    assert school.states() == {"alice": "ready", "bob": "ready"}
    alice, bob = school.rosters.students("promo").values()
    seen = school.site.seen()
    assert seen["addresses"].pop("10.60.0.10") == "02:ff:00:00:00:01"
    assert (bob.address, alice.address in ("10.60.0.10", "10.60.0.11")) == ("10.60.0.11", False)
    assert set(seen["addresses"]) == {alice.address, bob.address}
    assert seen["names"]["vm-alice.school.example.org"] == alice.address
    assert seen["machines"]["promo/alice"]["address"] == alice.address
    # What commands know it by, too.
    assert {each["address"] for each in stack_machines(school)} == {alice.address, bob.address}
    assert school.apply(roster(), people("alice", "bob")).decided.changes == ()


def test_an_address_that_leads_to_somebody_else_is_exchanged_and_dhcp_forgets_it(
    school, monkeypatch
):
    name = school.site.names.name

    def refuse(host) -> None:
        if host.address == "10.60.0.10":
            raise ClashError("10.0.60.10.in-addr.arpa is www.example.org already")
        name(host)

    monkeypatch.setattr(school.site.names, "name", refuse)
    school.apply(roster(), people("alice"))
    (alice,) = school.rosters.students("promo").values()
    assert (alice.standing, alice.address != "10.60.0.10") == (Standing.READY, True)
    assert list(school.site.seen()["addresses"]) == [alice.address]
    assert school.site.seen()["names"] == {"vm-alice.school.example.org": alice.address}


def test_a_machine_that_lost_its_address_to_somebody_else_gets_another_one(school):
    school.apply(roster(), people("alice"))
    with school.site.addresses.changed() as addresses_:
        addresses_["10.60.0.10"] = "02:ff:00:00:00:01"
    with school.site.desktops.changed() as desktops:
        desktops.clear()
    school.apply(roster(), people("alice"))
    (alice,) = school.rosters.students("promo").values()
    assert (alice.standing, alice.address != "10.60.0.10") == (Standing.READY, True)
    seen = school.site.seen()
    assert seen["names"] == {"vm-alice.school.example.org": alice.address}
    assert seen["addresses"].keys() == {"10.60.0.10", alice.address}
    assert seen["machines"]["promo/alice"]["address"] == alice.address


def test_commands_know_the_address_of_a_machine_that_its_student_made_anew(school):
    school.apply(roster(), people("alice", "bob"))

    def does(verb: str) -> None:
        alice = school.rosters.one("promo", "alice")
        seats.begin(school, seats.Seat(roster(), alice, own=True), verb)
        school.settle("alice")

    does("delete")
    with school.site.addresses.changed() as addresses_:
        addresses_["10.60.0.10"] = "02:ff:00:00:00:01"
    does("create")
    kept = {each["name"]["machine"]: each["address"] for each in stack_machines(school)}
    assert kept == {"alice": "10.60.0.12", "bob": "10.60.0.11"}


def stack_machines(school) -> list[dict]:
    return school.stacks.get_stack("promo")["stack"]["machines"]


def test_when_every_address_was_given_away_meanwhile_that_is_told(school):
    planned = use.plan(school, roster(last="10.60.0.11"), people("alice"))
    with school.site.addresses.changed() as addresses_:
        addresses_ |= {f"10.60.0.{n}": "02:ff:00:00:00:01" for n in (10, 11)}
        there_ = dict(addresses_)
    assert school.courier.wait(use.apply(school, planned), timeout=120)
    (alice,) = school.rosters.students("promo").values()
    assert (alice.standing, alice.address) == (Standing.FAILED, "")
    assert "addresses of the roster's network are taken" in alice.error
    seen = school.site.seen()
    assert (seen["machines"], seen["names"], seen["addresses"]) == ({}, {}, there_)


def test_what_went_off_by_itself_is_started_and_what_somebody_stopped_is_not(school):
    them = people("alice", "bob")
    school.apply(roster(), them)
    for name in ("alice", "bob"):
        school.site.driver.stop(MachineName("promo", name))  # their node was lost
    planned = school.apply(roster(), them)
    assert {(c.verb, c.reason) for c in planned.decided.changes} == {("wake", "wanted on, is off")}
    assert powers(school) == {"alice": "on", "bob": "on"}
    assert school.courier.wait(classes.power(school, "promo", "stop", ["bob"]), timeout=120)
    assert school.apply(roster(), them).decided.changes == ()
    # Not even when something else is to be mended.
    with school.site.names.changed() as names:
        names.clear()
    planned = school.apply(roster(), them)
    assert [change.verb for change in planned.decided.changes] == ["mend", "mend"]
    assert powers(school) == {"alice": "on", "bob": "off"}
    assert school.apply(roster(), them).decided.changes == ()
    assert school.courier.wait(classes.power(school, "promo", "start", ["bob"]), timeout=120)
    school.site.driver.stop(MachineName("promo", "bob"))
    assert [c.key for c in school.apply(roster(), them).decided.changes] == ["bob"]
    assert powers(school) == {"alice": "on", "bob": "on"}


def powers(school) -> dict[str, str]:
    machines = school.site.seen()["machines"].items()
    return {name.partition("/")[2]: its["power"] for name, its in machines}


def test_a_snapshot_of_a_label_that_is_there_is_refused_and_the_old_one_stays(school):
    school.apply(roster(), people("alice", "bob"))
    for name in ("promo/alice", "promo/bob"):
        school.site.driver.write(name, "before")
    first = classes.power(school, "promo", "snapshot", ["alice"], label="exam")
    assert school.courier.wait(first, timeout=120)
    school.site.driver.write("promo/alice", "after")
    again = classes.power(school, "promo", "snapshot", label="exam")
    assert school.courier.wait(again, timeout=120)
    rows = {row.login: row for row in students.table(school, "promo")}
    assert "promo/alice has a snapshot exam already" in rows["alice"].failed
    assert "choose another label, or remove that snapshot first" in rows["alice"].failed
    assert rows["bob"].failed == ""
    kept = {name: its["kept"] for name, its in school.site.seen()["machines"].items()}
    assert kept == {"promo/alice": {"exam": "before"}, "promo/bob": {"exam": "before"}}
    assert school.states() == {"alice": "ready", "bob": "ready"}


def test_a_start_that_was_refused_is_tried_again_by_retry(school):
    school.apply(roster(), people("alice"))
    school.site.driver.stop(MachineName("promo", "alice"))
    refuses = school.site.driver.file.with_suffix(".refuses")
    refuses.write_text("start")
    school.apply(roster(), people("alice"))
    (row,) = students.table(school, "promo")
    assert (row.state, row.power) == ("ready", "off")
    assert row.todo == "essaim students retry promo alice"
    assert "refuses start promo/alice" in row.failed
    refuses.unlink()
    planned = use.retry(school, "promo")
    assert [change.verb for change in planned.decided.changes] == ["wake"]
    assert school.courier.wait(use.apply(school, planned), timeout=120)
    assert powers(school) == {"alice": "on"}
    assert students.table(school, "promo")[0].todo == ""


def test_a_template_that_is_not_there_is_told_once_and_before(school, monkeypatch):
    asked = []

    def check_image(image) -> None:
        asked.append(image.name)
        raise RejectedError("there is no template")

    school.apply(roster(), people("alice"))
    monkeypatch.setattr(school.site.driver, "check_image", check_image, raising=False)
    with pytest.raises(RejectedError, match="there is no template"):
        school.apply(roster(), people("alice", "bob", "carol"))
    assert len(asked) == 1
    assert list(school.rosters.students("promo")) == ["alice"]
    school.apply(roster(), people("alice"))  # nobody needs it


def test_a_network_that_is_too_small_changes_nothing(school):
    small = roster(first="10.60.0.10", last="10.60.0.11")
    with pytest.raises(RejectedError, match="addresses of the roster's network are taken"):
        school.apply(small, people("alice", "bob", "carol"))
    assert school.states() == {}
    school.apply(small, people("alice", "bob"))
    assert set(school.states().values()) == {"ready"}


def test_two_rosters_on_one_network_share_no_address(school):
    school.apply(roster(), people("alice", "bob"))
    school.apply(roster(name="other"), people("alice", "carol"))
    given = [
        student.address
        for name in ("promo", "other")
        for student in school.rosters.students(name).values()
    ]
    assert len(set(given)) == 4


def test_a_roster_stays_where_it_is_and_shares_its_name_with_no_stack(school):
    school.apply(roster(), people("alice"))
    with pytest.raises(InvalidError, match=r"lives on site pve in 10\.60\.0\.0/20"):
        use.plan(school, roster(cidr="10.9.0.0/24"), people("alice"))
    school.stacks.put_stack("slurm", {"stack": {}, "lab": ""})
    with pytest.raises(InvalidError, match="it is no roster"):
        use.plan(school, roster(name="slurm"), people("alice"))
    from essaim.usecases import stacks

    with pytest.raises(InvalidError, match="promo is a roster"):
        stacks.make_down_plan(school, "promo")


def test_machines_of_another_image_are_made_anew_when_asked(school):
    school.apply(roster(), people("alice"))
    school.site.driver.write("promo/alice", "thesis")
    newer = roster(image=dataclasses.replace(roster().image, digest="e" * 64))
    assert school.apply(newer, people("alice")).decided.outdated == ("alice",)
    assert school.site.seen()["machines"]["promo/alice"]["disk"] == "thesis"
    address = school.rosters.students("promo")["alice"].address
    school.apply(newer, people("alice"), reset=True)
    made = school.site.seen()["machines"]["promo/alice"]
    assert (made["disk"], made["image"], made["power"]) == ("new", "e" * 64, "on")
    assert school.rosters.students("promo")["alice"].address == address
    assert school.states() == {"alice": "ready"}


def test_a_hypervisor_that_is_away_only_delays(school):
    down = school.site.driver.file.with_suffix(".down")
    planned = use.plan(school, roster(), people("alice"))
    down.touch()
    run = use.apply(school, planned)
    school.courier.wake()
    wait_for(lambda: "does not answer" in str(students.progress(school, run).waits))
    down.unlink()
    assert school.courier.wait(run, timeout=120)
    assert school.states() == {"alice": "ready"}


def test_what_is_being_worked_on_is_left_alone(school):
    school.apply(roster(), people("alice", "bob"))
    down = school.site.driver.file.with_suffix(".down")
    planned = use.plan(school, roster(), [])
    down.touch()
    from essaim.usecases import seats

    seat = seats.Seat(roster(), school.rosters.students("promo")["alice"], own=False)
    seats.begin(school, seat, "stop")
    run = use.apply(school, planned)
    assert [run.subject for run in school.journal.children(run)] in ([], ["promo/bob"])
    with pytest.raises(HeldError, match="une opération est en cours"):
        seats.begin(school, reread(school, "alice"), "start")
    down.unlink()
    assert school.courier.wait(run, timeout=120)
    school.settle("alice")
    assert school.states() == {"alice": "ready", "bob": "retired"}


def reread(school, login):
    from essaim.usecases import seats

    return seats.Seat(roster(), school.rosters.students("promo")[login], own=False)


def test_people_may_come_from_a_directory(school):
    them = use.members(school, roster(), "cn=promo")
    assert [person.login for person in them] == ["alice", "bob"]
    school.directory = lambda _site: None
    with pytest.raises(UnknownError, match="names no directory"):
        use.members(school, roster(), "cn=promo")


def test_a_class_is_started_and_stopped_by_the_clock_once(school):
    school.apply(roster(), people("alice", "bob"))
    lesson = classes.schedule(school, "promo", "stop", "mon-sun 18:30")
    assert lesson.next_at > school.rosters.now()
    # As if that time had just come, for two processes that look at once.
    due = school.rosters.now() - 1000
    school.classes.put_lesson(Lesson("promo", "stop", "mon-sun 18:30", due))
    first = Schooling(school)
    first.reconcile()
    second = classes.ring(school)
    assert second == []
    wait_for(lambda: {m.power for m in school.site.driver.observe("promo")} == {Power.OFF})
    (kept,) = school.classes.lessons("promo")
    assert kept.next_at > school.rosters.now()
    wait_for(lambda: not school.journal.list(subject="promo", states=use.UNFINISHED))
    # What was missed by hours is not made up for.
    school.classes.put_lesson(Lesson("promo", "start", "07:45", due - 3_600_000))
    assert classes.ring(school) == []
    classes.unschedule(school, "promo")
    assert school.classes.lessons() == []


def test_what_was_retired_long_ago_is_destroyed_by_the_clock(school):
    wanted = roster(grace=0.001)
    school.apply(wanted, people("alice", "bob"))
    run = classes.power(school, "promo", "retire", ["bob"])
    assert school.courier.wait(run, timeout=120)
    time.sleep(0.01)
    (run,) = classes.expire(school)
    assert school.courier.wait(run, timeout=120)
    assert school.states() == {"alice": "ready"}
    assert "promo/bob" not in school.site.driver.seen()
    assert classes.expire(school) == []


def test_a_whole_roster_is_removed_with_all_that_it_had(school):
    school.apply(roster(), people("alice", "bob"))
    assert school.courier.wait(classes.remove(school, "promo"), timeout=120)
    assert classes.remove(school, "promo") == ""
    assert not any(school.site.seen().values())
    assert (school.rosters.names(), school.stacks.list_stacks()) == ([], [])
    with pytest.raises(UnknownError):
        classes.remove(school, "promo")


def test_teachers_are_accounts_that_exist(school):
    school.apply(roster(), people("alice"))
    with pytest.raises(UnknownError, match="nobody is called turing"):
        classes.set_teacher(school, "promo", "turing")
    school.user("turing")
    classes.set_teacher(school, "promo", "turing")
    assert classes.teachers(school, "promo") == ["turing"]
    classes.set_teacher(school, "promo", "turing", teaches=False)
    assert classes.teachers(school, "promo") == []


def test_waits_are_told_without_the_seconds_they_take(school, monkeypatch):
    notes = {"clones gui (3 s so far)": 2, "clones gui (9 s so far)": 1, "waits for slot x": 5}
    found = SimpleNamespace(states={}, notes=notes)
    monkeypatch.setattr(school.rosters.works, "progress", lambda _run: found)
    assert students.progress(school, "x").waits == [("waits for slot x", 5), ("clones gui", 3)]


def test_how_it_stands_is_kept_since_when(school):
    school.apply(roster(), people("alice"))
    before = school.rosters.students("promo")["alice"]
    assert before.made
    school.rosters.stand("promo/alice", Standing.READY)
    assert school.rosters.students("promo")["alice"] == before
    school.rosters.stand("promo/alice", Standing.WITHOUT)
    assert not school.rosters.students("promo")["alice"].made
