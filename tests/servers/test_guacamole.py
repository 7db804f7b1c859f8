"""Desktops in Guacamole, on a simulator of its REST API: nothing real can run here."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from essaim.model.errors import RejectedError, SetupError, TakenError, TransientError
from essaim.model.school import Desktop
from essaim.servers.guacamole import Guacamole, Settings
from essaim.servers.guacamole_rest import RefusedError, Rest
from essaim_lab.simulators.guacamole import Simulator
from essaim_lab.simulators.guacamole_rules import User
from servers import daemons

DESKTOP = Desktop(
    name="vm-alice",
    protocol="rdp",
    address="10.77.0.5",
    port=3389,
    group="promo",
    people=("alice",),
    settings={"security": "nla", "ignore-cert": "true"},
)


@pytest.fixture
def simulator():
    with Simulator() as running:
        yield running


@pytest.fixture
def settings(simulator) -> Settings:
    return Settings(
        url=simulator.url,
        user=simulator.user,
        secret=simulator.secret,
        ca=str(simulator.ca),
        within=daemons.PATIENCE,
    )


@pytest.fixture
def desktops(settings):
    opened = Guacamole(settings)
    yield opened
    opened.close()


def sees(simulator: Simulator, person: str) -> set[str]:
    """The names of the connections somebody finds when they log in themselves."""
    simulator.state.users[person].password = "theirs"
    rest = Rest(
        url=simulator.url,
        user=person,
        secret="theirs",
        source="",
        ca=str(simulator.ca),
        within=daemons.PATIENCE,
    )
    tree = rest.call("GET", ["connectionGroups", "ROOT", "tree"])
    rest.close()
    inner = [c for group in tree["childConnectionGroups"] for c in group["childConnections"]]
    return {connection["name"] for connection in [*tree["childConnections"], *inner]}


def test_what_another_control_plane_has_made_is_neither_taken_nor_removed(simulator, settings):
    one, two = (Guacamole(replace(settings, plane=plane)) for plane in ("a1b2", "c3d4"))
    one.publish(DESKTOP)
    before = json.dumps(simulator.state.connections)
    with pytest.raises(TakenError, match=r"vm-alice in promo .*made by another control plane"):
        two.publish(replace(DESKTOP, address="10.77.0.9", people=("eve",)))
    two.withdraw("vm-alice", "promo")
    assert two.published() == []
    assert json.dumps(simulator.state.connections) == before
    assert one.published() == [DESKTOP]
    one.withdraw("vm-alice", "promo")
    assert simulator.state.connections == {}
    one.close(), two.close()


def test_a_published_desktop_is_there_for_its_people_and_nobody_else(simulator, desktops):
    desktops.publish(DESKTOP)
    desktops.publish(replace(DESKTOP, name="vm-bob", people=("bob",)))
    assert sees(simulator, "alice") == {"vm-alice"}
    assert sees(simulator, "bob") == {"vm-bob"}
    (made,) = [c for c in simulator.state.connections.values() if c["name"] == "vm-alice"]
    assert made["protocol"] == "rdp"
    assert made["parameters"]["hostname"] == "10.77.0.5"
    assert made["parameters"]["port"] == "3389"
    assert made["parameters"]["security"] == "nla"
    assert simulator.state.groups[made["parentIdentifier"]]["name"] == "promo"


def test_a_desktop_without_a_group_is_in_the_root(simulator, desktops):
    desktops.publish(replace(DESKTOP, group=""))
    assert sees(simulator, "alice") == {"vm-alice"}
    assert simulator.state.groups == {}
    desktops.withdraw(DESKTOP.name)
    assert sees(simulator, "alice") == set()


def test_a_withdrawn_desktop_is_gone_and_accounts_stay(simulator, desktops):
    desktops.publish(DESKTOP)
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    assert simulator.state.connections == {}
    assert "alice" in simulator.state.users
    assert sees(simulator, "alice") == set()


def test_every_verb_may_be_repeated(simulator, desktops):
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    desktops.publish(DESKTOP)
    before = simulator.state.number
    desktops.publish(DESKTOP)
    assert simulator.state.number == before
    assert simulator.calls["PUT", "connections"] == 0
    assert desktops.published() == [DESKTOP]
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    assert desktops.published() == []


def test_publishing_again_changes_what_differs(simulator, desktops):
    desktops.publish(replace(DESKTOP, people=("alice", "bob")))
    changed = replace(
        DESKTOP, people=("alice", "carol"), address="10.77.0.6", protocol="vnc", port=5900
    )
    desktops.publish(changed)
    assert desktops.published() == [changed]
    assert sees(simulator, "bob") == set()
    assert sees(simulator, "carol") == sees(simulator, "alice") == {"vm-alice"}


def test_what_a_person_gave_elsewhere_stays(simulator, desktops):
    desktops.publish(DESKTOP)
    (identifier,) = simulator.state.connections
    desktops.publish(replace(DESKTOP, name="other", people=("bob",)))
    simulator.state.users["bob"].objects["connectionPermissions"][identifier].add("READ")
    simulator.state.connections[identifier]["attributes"]["max-connections"] = "2"
    desktops.publish(replace(DESKTOP, address="10.77.0.9"))
    assert sees(simulator, "bob") == {"other", "vm-alice"}
    assert simulator.state.connections[identifier]["attributes"] == {"max-connections": "2"}


def test_a_connection_of_somebody_else_is_refused_and_left_alone(simulator, desktops):
    desktops.publish(DESKTOP)
    group = next(iter(simulator.state.groups))
    foreign = {
        "name": "printer",
        "parentIdentifier": group,
        "identifier": "900",
        "protocol": "vnc",
        "parameters": {"hostname": "printer.example.org"},
    }
    simulator.state.connections["900"] = dict(foreign)
    with pytest.raises(TakenError, match=r"printer in promo .*somebody else") as caught:
        desktops.publish(replace(DESKTOP, name="printer"))
    assert caught.value.hint
    desktops.withdraw("printer", "promo")  # what undoes a publishing that was refused
    assert simulator.state.connections["900"] == foreign
    assert sees(simulator, "alice") == {"vm-alice"}
    assert [d.name for d in desktops.published()] == ["vm-alice"]
    assert desktops.titles() == {("promo", "vm-alice"), ("promo", "printer")}


def test_eight_who_publish_the_same_desktop_at_once_agree(simulator, settings):
    many = [Guacamole(settings) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: one.publish(DESKTOP), many))
    assert many[0].published() == [DESKTOP]
    assert len(simulator.state.groups) == 1
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: one.withdraw(DESKTOP.name, DESKTOP.group), many))
    assert simulator.state.connections == {}
    for one in many:
        one.close()


def test_of_two_groups_of_a_name_the_first_counts(simulator, settings, desktops):
    real = simulator.handle

    def handle(method, words, *rest):
        answer = real(method, words, *rest)
        if (method, words[-1]) == ("POST", "connectionGroups"):
            # Guacamole's index does not count what is below the root: somebody came first.
            simulator.handle = real
            simulator.state.groups["0"] = {
                "name": "promo",
                "parentIdentifier": "ROOT",
                "identifier": "0",
                "type": "ORGANIZATIONAL",
            }
        return answer

    simulator.handle = handle
    desktops.publish(DESKTOP)
    assert list(simulator.state.groups) == ["0"]
    assert sees(simulator, "alice") == {"vm-alice"}


def test_what_another_process_removed_is_made_again(simulator, settings, desktops):
    desktops.publish(DESKTOP)
    other = Guacamole(settings)
    other.withdraw(DESKTOP.name, DESKTOP.group)
    desktops.publish(DESKTOP)
    assert sees(simulator, "alice") == {"vm-alice"}
    simulator.state.connections.clear()
    simulator.state.groups.clear()
    del simulator.state.users["alice"]
    desktops.publish(DESKTOP)
    assert sees(simulator, "alice") == {"vm-alice"}
    other.close()


def test_what_another_process_just_made_is_withdrawn(simulator, settings, desktops):
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    other = Guacamole(settings)
    other.publish(DESKTOP)
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    assert simulator.state.connections == {}
    other.close()


def test_six_hundred_desktops_cost_few_questions_and_little_time(simulator, desktops):
    wanted = [replace(DESKTOP, name=f"vm-{i}", people=(f"p{i}",)) for i in range(600)]
    # The simulator's own threads are not counted.
    spent: list[float] = []

    def one(desktop: Desktop) -> None:
        before = time.thread_time()
        desktops.publish(desktop)
        spent.append(time.thread_time() - before)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, wanted))
    assert len(simulator.state.connections) == 600
    assert sum(simulator.calls.values()) <= 4 * 600
    before = sum(simulator.calls.values())
    assert len(desktops.titles()) == 600
    assert sum(simulator.calls.values()) == before + 2
    assert sum(spent) / 600 < 0.04


def test_a_token_that_ended_is_renewed_once_for_all(simulator, desktops):
    desktops.publish(DESKTOP)
    simulator.expire()
    names = [f"vm-{i}" for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: desktops.publish(replace(DESKTOP, name=name)), names))
    assert len(simulator.state.connections) == 17
    assert simulator.calls["POST", "tokens"] == 2


def test_text_is_never_taken_for_a_path(simulator, desktops):
    odd = replace(DESKTOP, name="../users/?x=1#", group="a/b %41", people=("al/../ice",))
    desktops.publish(odd)
    assert desktops.published() == [odd]
    assert sees(simulator, "al/../ice") == {odd.name}
    desktops.withdraw(odd.name, odd.group)
    assert desktops.published() == []


def test_a_wrong_password_is_told_without_it(settings):
    desktops = Guacamole(replace(settings, secret="wrong-one"))
    with pytest.raises(RejectedError, match="Invalid login") as caught:
        desktops.publish(DESKTOP)
    assert "desktop.secret" in caught.value.hint
    assert "wrong-one" not in f"{caught.value} {replace(settings, secret='wrong-one')!r}"
    desktops.close()


def test_an_account_that_may_not_is_told(simulator, settings, desktops):
    desktops.publish(DESKTOP)
    simulator.state.users["alice"].password = "theirs"
    weak = Guacamole(replace(settings, user="alice", secret="theirs"))
    with pytest.raises(RejectedError, match="Permission Denied") as caught:
        weak.publish(replace(DESKTOP, name="another"))
    assert "administer" in caught.value.hint
    weak.close()


def test_a_data_source_that_is_not_there_is_told(settings):
    desktops = Guacamole(replace(settings, source="postgresql"))
    with pytest.raises(RejectedError, match="no data source postgresql") as caught:
        desktops.published()
    assert "mysql" in caught.value.hint
    desktops.close()


def test_an_unknown_protocol_is_refused_before_anybody_is_asked(simulator, desktops):
    with pytest.raises(RejectedError, match="speaks x11") as caught:
        desktops.publish(replace(DESKTOP, protocol="x11"))
    assert "rdp" in caught.value.hint
    assert not simulator.calls


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_server_in_trouble_is_worth_another_try(simulator, desktops, status):
    simulator.fault(status)
    with pytest.raises(TransientError, match=str(status)):
        desktops.publish(DESKTOP)
    desktops.publish(DESKTOP)
    simulator.fault(status)
    with pytest.raises(TransientError):
        desktops.withdraw(DESKTOP.name, DESKTOP.group)
    desktops.withdraw(DESKTOP.name, DESKTOP.group)
    assert simulator.state.connections == {}


def test_a_desktop_that_was_half_published_is_completed(simulator, desktops):
    desktops.publish(replace(DESKTOP, name="first", people=()))
    # The connection and the account are made, and then the permission is not.
    real = simulator.handle

    def handle(method, *rest):
        if method == "PATCH":
            simulator.handle = real
            simulator.fault(503)
        return real(method, *rest)

    simulator.handle = handle
    with pytest.raises(TransientError):
        desktops.publish(DESKTOP)
    assert sees(simulator, "alice") == set()
    desktops.publish(DESKTOP)
    assert sees(simulator, "alice") == {"vm-alice"}


def test_a_server_that_is_away_is_worth_another_try(settings):
    with daemons.refusing_port() as port:
        desktops = Guacamole(replace(settings, url=f"https://127.0.0.1:{port}/guacamole"))
        for verb in (
            lambda: desktops.publish(DESKTOP),
            lambda: desktops.withdraw(DESKTOP.name),
            desktops.published,
        ):
            with pytest.raises(TransientError, match="does not answer"):
                verb()
        desktops.close()


def test_a_certificate_nobody_signed_is_refused(settings):
    desktops = Guacamole(replace(settings, ca=""))
    with pytest.raises(RejectedError, match="certificate") as caught:
        desktops.publish(DESKTOP)
    assert "desktop.ca" in caught.value.hint
    desktops.close()
    with pytest.raises(SetupError, match=r"nowhere.pem cannot be read"):
        Guacamole(replace(settings, ca="/nowhere.pem"))


def test_the_simulator_is_a_program_too(settings):
    words = [sys.executable, "-m", "essaim_lab.simulators.guacamole"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            desktops = Guacamole(Settings(**json.loads(process.stdout.readline())))
            desktops.publish(DESKTOP)
            assert desktops.published() == [DESKTOP]
            desktops.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_who_logged_in_is_told_in_one_question(simulator, desktops):
    assert [each.person for each in desktops.logins()] == [simulator.user]
    before = sum(simulator.calls.values())
    simulator.log_in("Alice")
    simulator.state.logins[-1]["startDate"] -= 3_600_000
    simulator.log_in("bob")
    # Before whoever comes next, whatever happens to the clock: it counts milliseconds.
    simulator.state.logins[-1]["startDate"] -= 60_000
    told = {each.person: each for each in desktops.logins()}
    assert sum(simulator.calls.values()) == before + 1
    assert told["bob"].ago < 1800 < told["alice"].ago < 5400
    assert told["alice"].number + 1 == told["bob"].number
    # Of more than a thousand the newest are told.
    for _ in range(1000):
        simulator.log_in("carol")
    assert {each.person for each in desktops.logins()} == {"carol"}


def test_the_simulator_tells_log_ins_as_guacamole_does(simulator, settings):
    simulator.state.users["zoe"] = User(password="theirs")
    rest = Rest(
        url=settings.url,
        user="zoe",
        secret="theirs",
        source="",
        ca=settings.ca,
        within=daemons.PATIENCE,
    )
    with contextlib.closing(rest):
        simulator.log_in("alice")
        simulator.state.logins[-1]["startDate"] -= 1000
        # Without the right to audit there is only one's own.
        (own,) = rest.call("GET", ["history", "users"])
        assert (own["username"], own["endDate"], own["active"]) == ("zoe", None, False)
        simulator.state.users["zoe"].system.add("AUDIT")
        listed, _now = rest.newest(["history", "users"])
        assert [entry["username"] for entry in listed] == ["zoe", "alice"]
        with pytest.raises(RefusedError, match='Invalid sort property: "username"'):
            rest._asked("GET", ["history", "users"], query={"order": "-username"})
