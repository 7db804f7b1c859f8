"""A school's cluster at the terminal: templates, what is remembered, and a cluster that is gone.

The simulator stands for the cluster; a relay stands for the way there, which can be cut.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from cli.person import Person
from essaim.bootstrap import App
from essaim_lab.simulators.proxmox import Simulator
from essaim_lab.simulators.proxmox.settings import NodeSettings
from french import leftovers
from patience import in_test_all

PATIENCE = 120.0


class Relay:
    """A way to a port of this computer that can be cut, and opened again at the same place."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(self._to)
            except OSError:
                return
            self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._begin()


def _carry(near: socket.socket, far: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            far.sendall(data)
    with contextlib.suppress(OSError):
        far.shutdown(socket.SHUT_WR)


@pytest.fixture
def sim() -> Iterator[Simulator]:
    # A machine takes some ten seconds to stop: time to cut the way meanwhile.
    node = NodeSettings(name="pve", shutdown_seconds=1000.0, stop_seconds=1000.0)
    with Simulator(nodes=2, speed=100.0, node=node) as made:
        yield made


@pytest.fixture
def way(sim) -> Iterator[Relay]:
    relay = Relay(sim.port)
    yield relay
    relay.cut()


@pytest.fixture
def school(tmp_path, sim, way):
    """Somebody with a lab of one roster, promo, on the cluster."""
    person = Person(tmp_path / "home")
    person.env |= {"ESSAIM_HOME": str(tmp_path / "state"), "ESSAIM_CACHE": str(tmp_path / "cache")}
    lab = person.lab = tmp_path / "lab"
    (lab / "site").mkdir(parents=True)
    (lab / "essaim.yaml").touch()
    (lab / "token").write_text(sim.plane_secret)
    (lab / "token").chmod(0o600)
    (lab / "site" / "pve.yaml").write_text(
        f"driver: proxmox\nurl: https://127.0.0.1:{way.port}\ntoken: {sim.plane_token}\n"
        f"secret: {{file: token}}\nca: {sim.ca}\nids: 50000-50999\npool: students\n"
        "storage: vol-ceph-1\n"
    )
    person.roster = str(lab / "promo.csv")
    (lab / "promo.csv").write_text("login,name\nalice,Alice\nbob,Bob\ncarol,Carol\n")
    return person


def types_in_french(person, *words: str, code: int = 0) -> str:
    done = person.types(*words, LANG="fr_FR.UTF-8")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def apply(person, *words: str, code: int = 0) -> str:
    done = person.types("students", "apply", person.roster, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_templates_are_listed_and_what_was_said_once_is_remembered(school):
    said = apply(school, "--site", "pve", code=1)
    assert "the site has: debian-gui (9000), debian-vm (9500)" in said
    said = apply(school, "--site", "pve", "--template", "nothing", code=1)
    assert "the site has: debian-gui (9000), debian-vm (9500)" in said
    assert "3 ready" in apply(school, "--site", "pve", "--template", "debian-gui")
    assert "promo: nothing to change" in apply(school)
    said = apply(school, "--template", "debian-vm")
    assert "promo: image was debian-gui, now debian-vm" in said
    said = apply(school, "--plan")
    assert "was" not in said
    assert "3 from another image" in said


@pytest.fixture
def applied(school):
    apply(school, "--site", "pve", "--template", "debian-gui")
    return school


def test_a_cluster_that_is_gone_is_told_once_and_forgotten_when_asked(applied, way, sim, tmp_path):
    """Every verb says so in one sentence and does nothing; --forget lists what is left there."""
    numbers = [str(vmid) for vmid in sim.cluster.guests if vmid >= 50000]
    assert len(numbers) == 3
    way.cut()
    for words in (
        ("apply", applied.roster),
        ("start", "promo"),
        ("stop", "promo"),
        ("reset", "promo", "alice", "--yes"),
        ("snapshot", "promo"),
        ("remove", "promo", "--yes"),
    ):
        done = applied.types("students", *words)
        assert done.returncode == 3, (words, done.stderr)
        assert done.stderr.count("site pve cannot be reached") == 1, done.stderr
        assert "connection refused" in done.stderr
    assert "essaim students remove promo --forget" in done.stderr
    # Another roster of the same site keeps all it has.
    with contextlib.closing(App(applied.env)) as control:
        held = control.reservations.held("pve", "vmid")
        assert sorted(held) == sorted(map(int, numbers))
        control.reservations.reserve("pve", "vmid", "others/zoe", [50999])
    done = applied.types("students", "remove", "promo", "--forget", stdin="")
    assert done.returncode == 2, done.stderr
    assert "say --yes" in done.stderr
    done = applied.types("students", "remove", "promo", "--forget", "--yes")
    assert done.returncode == 0, done.stderr
    for number in numbers:
        assert f"vmid {number}" in done.stderr
    assert "promo: 3 machine(s) forgotten" in done.stderr
    with contextlib.closing(App(applied.env)) as control:
        assert control.reservations.held("pve", "vmid") == {50999: "others/zoe"}
        assert control.rosters.names() == []
        assert control.stacks.list_stacks() == []
    assert len([vmid for vmid in sim.cluster.guests if vmid >= 50000]) == 3, "it was not asked"


@in_test_all
def test_one_lost_machine_is_forgotten_and_made_anew(applied, sim):
    said = applied.types("students", "retire", "promo", "bob", "--forget", "--yes")
    assert said.returncode == 0, said.stderr
    assert "promo: 1 machine(s) forgotten" in said.stderr
    assert "+ 1 to add (new): bob" in apply(applied)


def test_a_cluster_that_vanishes_meanwhile_ends_the_command_and_the_same_goes_on(applied, way, sim):
    """One sentence, not one for each machine after minutes; nothing is lost by it."""
    process = applied.begins("students", "remove", "promo", "--yes")
    deadline = time.monotonic() + PATIENCE
    while not stopping(sim):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    way.cut()
    _out, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3, said
    assert said.count("site pve cannot be reached") == 1, said
    assert "promo: stopped; nothing is lost" in said
    assert "essaim students remove promo --forget" in said
    assert "✗" not in said
    way.mend()
    assert "nothing is left of it" in applied.types("students", "remove", "promo", "--yes").stderr
    assert not [vmid for vmid in sim.cluster.guests if vmid >= 50000]


def stopping(sim) -> bool:
    """Whether the cluster is stopping a machine."""
    with sim.clock.lock:
        every = [task for node in sim.cluster.nodes for task in sim.cluster.tasks_of(node)]
        return any(task.running for task in every)


def test_a_school_speaks_french_from_the_first_command_to_the_last(school, way):
    """No word of English but in commands, also in errors and where the cluster is gone."""
    spoken = partial(types_in_french, school)
    few = school.lab / "promo.csv"
    good = few.read_text()
    for bad, said in (
        ("login,nmae\nalice,x\n", "colonne inconnue 'nmae'"),
        ("login\nAlice\nbob,x\n", "2 valeurs pour 1 colonnes"),
        ("login\n", "ne contient personne"),
    ):
        few.write_text(bad)
        assert said in spoken("students", "apply", school.roster, code=2)
    few.write_text(good)
    told = [
        spoken("students", "list"),
        spoken("students", "apply", school.roster, "--site", "pve", code=1),
        spoken("students", "apply", school.roster, "--site", "pve", "--template", "debian-gui"),
        spoken("students", "apply", school.roster),
        spoken("students", "list", "promo"),
        spoken("students", "show", "promo", "alice"),
        spoken("students", "list", "prmo", code=2),
        spoken("students", "schedule", "promo", "lundi 8h", "--stop", "lun-ven 18h30"),
        spoken("students", "schedule", "promo", "ludni 8h", code=2),
        spoken("students", "invite", "promo", "alice"),
        spoken("students", "teachers", "promo", "--add", "turing", code=2),
        spoken("students", "remove", "promo", code=2),
        spoken("students", "remove", code=2),
        spoken("students", "removee", "promo", code=2),
        spoken("students", "list", "--jsno", code=2),
        spoken("students", "list", "promo", "more", code=2),
    ]
    way.cut()
    told += [
        spoken("students", "list", "promo"),
        spoken("students", "start", "promo", code=3),
        spoken("students", "remove", "promo", "--yes", code=3),
        spoken("students", "remove", "promo", "--forget", "--yes"),
    ]
    whole = "\n".join(told)
    assert [(word, text) for text in told for word in leftovers(text)] == []
    for sentence in (
        "le site a : debian-gui (9000), debian-vm (9500)",
        "promo : terminé pour 3 machine(s) en",
        "3 prête(s)",
        "promo : rien à changer",
        "PROMOTION  ACTION",
        "lun-ven 18h30",
        "aucun contrôleur ne tourne",
        "vouliez-vous dire lundi ?",
        "personne à qui demander",
        "il manque 'ROSTER'",
        "vouliez-vous dire 'remove' ?",
        "le site pve est injoignable : https://127.0.0.1:",
        "connexion refusée",
        "promo : 3 machine(s) oubliées",
    ):
        assert sentence in whole, sentence
