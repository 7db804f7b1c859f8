"""A school's machines from end to end: commands as people type them, servers as schools have them.

The cluster and the desktops are simulators; names are in a real BIND, addresses in a real Kea.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from endtoend.people import OURS, ROOT, Person
from endtoend.school_chaos import Weather, spent, tell, typed_until_done
from endtoend.school_check import check
from endtoend.school_rig import PATIENCE, forget_all, kea, kea_tables, lab_proxmox, school, tasks
from patience import in_test_all
from servers.daemons import wait
from servers.nameservers import FORWARD
from testcache import CACHE

SEED = int(os.environ.get("ESSAIM_TEST_SEED", "20261116"))
#: Of each roster: a dozen is enough to try many seeds.
STUDENTS = int(os.environ.get("ESSAIM_TEST_STUDENTS", "100"))
RANGE = "10.77.0.2-10.77.0.240"


@pytest.fixture(scope="module")
def tables(servers) -> str:
    return kea_tables(servers("mariadb"))


@pytest.fixture
def hosts(tables) -> str:
    """The tables of a Kea that knows nobody yet."""
    forget_all(tables)
    return tables


@in_test_all
@pytest.mark.timeout(1800)
def test_two_control_planes_share_a_cluster_under_faults(hosts, tmp_path):
    """R-B2: killed, refused, snatched from, without a node: nothing doubled, nothing lost.

    Both take ids and addresses from the same ranges, beginning with the same ones.
    """
    many, kills = STUDENTS, max(3, STUDENTS * 8 // 100)
    span = 7 * many // kills  # a machine takes a few more requests than that
    ids = range(50000, 50000 + many * 6)
    tell(f"seed {SEED}")
    with school(tmp_path, hosts, seed=SEED, speed=20.0) as its:
        within = f"{ids[0]}-{ids[-1]}"
        planes = [its.plane(name, many, RANGE, within) for name in ("ann", "ben")]
        sim, told = its.cluster, []
        sim.fault("errors", share=0.05, after=0.5)
        sim.fault("locks", share=0.05)
        sim.fault("snatch", share=0.15)

        def both() -> None:
            with ThreadPoolExecutor(2) as pool:
                done = [
                    pool.submit(typed_until_done, plane, its, random.Random(SEED + n), kills, span)
                    for n, plane in enumerate(planes)
                ]
                told.extend(each.result() for each in done)

        with Weather(its, random.Random(SEED), ids, many // 4) as weather:
            wall, cpu = spent(both)
        calls, seen = its.asked.total(), dict(sim.cluster.faults.seen)
        sim.heal()
        tell(
            f"{2 * many} machines in {wall:.1f} s, commands {cpu:.1f} s of CPU, {calls} calls, "
            f"{[each.kills for each in told]} kills, node away {weather.lost:.1f} s, faults {seen}"
        )
        assert [each.kills for each in told] == [kills, kills]
        assert weather.lost
        for plane in planes:
            plane.applies()  # what ran on the lost node is off since, and wanted on
        check(its, *planes)
        for plane in planes:
            assert f"{plane.name}: nothing to change" in plane.applies()


@in_test_all
@pytest.mark.timeout(900)
def test_a_roster_of_the_same_name_takes_nothing_of_another_control_planes(hosts, tmp_path):
    """R-B4: what another plane has made stays its own, and whoever wants the name is told so."""
    with school(tmp_path, hosts, speed=100.0) as its:
        first, second = (its.plane("eve", 2, RANGE, "50000-50099", name=n) for n in ("one", "two"))
        first.applies()
        before = (its.guests().keys(), its.named(), its.admitted(), its.published())
        said = second.applies(code=1)
        for login in second.students:
            (row,) = [line for line in said.splitlines() if line.startswith(login)]
            assert re.search(rf"failed .* vm-{login}\.{FORWARD} is 10\.77\.0\.\d already", row)
        check(its, first)
        # Nor where names do not stand in the way: each desktop says whose it is.
        site = second.person.checkout / "site" / "pve.yaml"
        site.write_text(json.dumps({**json.loads(site.read_text()), "dns": None}))
        said = second.applies(code=1)
        theirs = "a connection vm-eve001 in eve that was made by another control plane"
        assert f"Guacamole has {theirs}" in said
        check(its, first)
        second.types("students", "remove", "eve", "--yes")
        check(its, first)
        assert (its.guests().keys(), its.named(), its.admitted(), its.published()) == before


@in_test_all
@pytest.mark.timeout(900)
def test_a_worker_that_is_killed_leaves_its_roster_to_another(hosts, brokers, tmp_path):
    """R-B2: nothing doubled, nothing lost, whoever carries it."""
    many, kills, luck = 24, 3, random.Random(SEED)
    broker = brokers("redis")
    broker.forget()
    with school(tmp_path, hosts, seed=SEED, speed=20.0) as its:
        plane = its.plane("gus", many, RANGE, "50000-50199", ESSAIM_BROKER=broker.url)
        asking = plane.person.begins("students", "apply", "gus.csv")
        workers = []
        try:
            for kill in range(kills + 1):
                until = its.asked[plane.token] + luck.randrange(3, 6 * many // kills)
                with (tmp_path / f"worker-{kill}").open("wb") as said:
                    command, env = plane.person.command("worker"), plane.person.env
                    where = plane.person.checkout
                    workers.append(subprocess.Popen(command, cwd=where, env=env, stderr=said))
                if kill < kills:
                    wait("requests", lambda: its.asked[plane.token] >= until, asking)  # noqa: B023 - asked at once
                    workers[-1].kill()
                    workers[-1].wait()
            said, _ = asking.communicate(timeout=PATIENCE)
            assert asking.returncode == 0, said
            check(its, plane)
            assert tasks(its, "vzclone") >= many
            assert "gus: nothing to change" in plane.applies()
        finally:
            for process in (asking, *workers):
                process.kill()
                process.wait()
            asking.stdout.close()


@pytest.mark.timeout(600)
def test_a_row_that_must_fail_is_wholly_undone(hosts, tmp_path):
    """R-B4: what belongs to somebody else stays theirs, and nothing of ours is left beside it."""
    with school(tmp_path, hosts, speed=100.0) as its:
        whole = its.plane("cat", 4, "10.77.0.2-10.77.0.110", "50000-50099")
        made = replace(whole, students=(whole.students[0], whole.students[3]))
        free_desktop = its.desktop_taken("cat", "vm-cat002")
        free_name = its.name_taken("vm-cat003", "10.77.0.240")
        said = whole.applies(code=4)
        assert "Guacamole has a connection vm-cat002 in cat that was made by somebody else" in said
        assert "vm-cat003.school.example.org is 10.77.0.240 already" in said
        for login in ("cat002", "cat003"):
            (row,) = [line for line in said.splitlines() if line.startswith(login)]
            assert "failed" in row
            assert f"essaim students retry cat {login}" in row
        assert "2 ready, 2 failed" in said
        check(its, made, beside={"vm-cat003": "10.77.0.240"})
        failed = "SELECT login, address FROM student WHERE standing = 'failed' ORDER BY login"
        assert whole.rows(failed) == [("cat002", ""), ("cat003", "")]
        # Nothing has changed: it fails again, and the others are left alone.
        whole.types("students", "retry", "cat", "cat003", code=1)
        check(its, made, beside={"vm-cat003": "10.77.0.240"})
        free_desktop()
        free_name()
        before = set(its.guests())
        said = whole.types("students", "retry", "cat")
        assert "2 ready" in said
        assert "cat001" not in said  # who did not fail is not told of
        check(its, whole)
        assert before < set(its.guests())
        assert tasks(its, "vzclone") == 4 + 1 + 2
        assert whole.types("students", "retry", "cat").splitlines() == ["cat: nothing to try again"]
        _, *told = whole.applies().splitlines()
        assert told[:2] == ["cat: nothing to change", "4 ready"]
        assert all(line.startswith("  ") for line in told[2:]), told  # what to type next


@pytest.mark.timeout(600)
def test_a_card_is_given_its_address_right_after_the_workflow_and_not_before(hosts, tmp_path):
    """A real client asks a real Kea: while the machine is being made, once it is, and after."""
    with school(tmp_path, hosts, speed=100.0) as its, kea(hosts) as dhcp:
        plane = its.plane("dan", 1, "10.77.0.2-10.77.0.110", "50000-50099")
        its.cluster.fault("quorum")
        process = plane.person.begins("students", "apply", "dan.csv")
        try:
            card = wait("a card", lambda: plane.card("dan001"), process)
            assert dhcp.refuses(card)
            its.cluster.heal()
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, said
        check(its, plane)
        assert dhcp.given(card) == "10.77.0.2 vm-dan001.school.example.org"
        plane.types("students", "remove", "dan", "--yes")
        assert dhcp.refuses(card)
        check(its)


@pytest.mark.timeout(600)
def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(hosts, tmp_path):
    """R-C2: whoever stops it is told how it stands and what to type."""
    with school(tmp_path, hosts, speed=100.0) as its:
        plane = its.plane("fay", 3, RANGE, "50000-50099")
        its.cluster.fault("quorum")  # nothing can be made
        process = plane.person.begins("students", "apply", "fay.csv")
        try:
            wait("a card", lambda: plane.card("fay001"), process)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 130, said
        assert "fay: stopped; nothing is lost. Go on with the same command" in said
        assert said.splitlines()[-1] == "3 coming", said
        its.cluster.heal()
        plane.applies()
        check(its, plane)
        assert tasks(its, "vzclone") == 3


@in_test_all
@pytest.mark.timeout(1800)
def test_600_students(tmp_path):
    """R-B1: the example as it says of itself, all at once; and again, with nothing to change."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    person = Person(tmp_path / "home", tmp_path, OURS, extra={"ESSAIM_CACHE": str(CACHE)})
    person.home.mkdir()
    words = ("--nodes", "5", "--templates", "1", "--speed", "20", "--port", "0")
    with lab_proxmox(person, *words) as cluster:
        shutil.copy(cluster.told["site"], tmp_path / "examples" / "school" / "site" / "pve.yaml")
        said = []

        def apply() -> None:
            process = person.begins("students", "apply", "examples/school/promo.csv")
            said.append(process.communicate(timeout=PATIENCE)[0])
            assert process.returncode == 0, said[-1]

        wall, cpu = spent(apply)
        calls, machines = cluster.calls(), cluster.machines()
        each = f"{cpu / 600:.3f} s of CPU and {calls / 600:.1f} calls for each"
        tell(f"600 machines in {wall:.0f} s, {each}")
        assert len({each["vmid"] for each in machines}) == 600
        assert {each["name"] for each in machines} == {f"vm-s{n:03}" for n in range(1, 601)}
        rows = [line for line in said[0].splitlines() if re.match(r"s\d{3} ", line)]
        assert len(rows) == 600
        assert all("ready, on" in row for row in rows)
        assert "600 ready" in said[0]
        before = cluster.calls()
        wall, cpu = spent(apply)
        tell(f"again in {wall:.1f} s, {cpu:.1f} s of CPU, {cluster.calls() - before} calls")
        assert "promo: nothing to change" in said[1]
        assert cluster.calls() - before <= 5
