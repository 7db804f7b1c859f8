"""What goes wrong on a cluster does not go wrong here; tried on a simulated one."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_crash import quick
from drivers.proxmox_lab import IDS, TEMPLATE, prox_lab, until_done
from essaim.drivers.proxmox import reachability
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.driver import Proxmox
from essaim.drivers.proxmox.refusals import Refusal
from essaim.model.errors import (
    NotYetError,
    RejectedError,
    SetupError,
    SiteAwayError,
    TransientError,
)
from essaim.model.machines import Power
from essaim.model.names import MachineName
from essaim.plan.limits import Gate
from essaim.store.database import open_database
from essaim.store.limits import Ask, Limits
from patience import in_test_all


@pytest.fixture
def it(tmp_path):
    with prox_lab(tmp_path) as made:
        yield made


@pytest.fixture
def wide(tmp_path):
    """Its token sees all machines, and may remove what never came into its pool."""
    with prox_lab(tmp_path, narrow=False) as made:
        yield made


def make(it, driver, number: int, stack: str = "lab", image=TEMPLATE) -> MachineName:
    machine = it.machine(stack, number)
    driver.create(machine, NETWORK, image, it.seed(machine))
    driver.start(machine.name)
    return machine.name


def all_of(it, driver, numbers, stack: str = "lab") -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: make(it, driver, number, stack), numbers))
    seen = driver.observe(stack)
    assert len(seen) == len(numbers)
    assert {one.power for one in seen} == {Power.ON}


def test_ids_that_strangers_take_meanwhile_lead_to_others_never_to_a_failure(it):  # R-B2
    it.stack()
    it.sim.fault("snatch", share=0.5)
    all_of(it, it.driver, range(1, 9))
    assert it.sim.cluster.faults.seen["foreign"] > 0
    ours, every = it.guests(), it.guests(ours=False)
    assert len(every) == len(ours) + it.sim.cluster.faults.seen["foreign"]
    assert all(IDS[0] <= number <= IDS[1] for number in ours)
    strangers = [guest for number, guest in every.items() if number not in ours]
    assert all(guest.name.startswith("foreign") for guest in strangers)
    assert {n for n, h in it.held().items() if IDS[0] <= n <= IDS[1]} == set(ours)


def test_lock_time_outs_5xx_and_a_dying_task_end_well(wide, monkeypatch):  # R-B2
    quick(monkeypatch)
    it = wide
    it.stack()
    it.sim.fault("errors", share=0.1)
    it.sim.fault("locks", share=0.5)
    it.sim.fault("deaths", count=1, kinds="vzclone", after=0.1)
    all_of(it, it.driver, range(1, 9))
    it.sim.heal()
    seen = it.sim.cluster.faults.seen
    assert seen["lock"] > 0
    assert seen["death"] == 1
    assert len(it.guests()) == 8
    # What the dead task left cannot be removed before somebody takes its lock off.
    (left,) = [guest for guest in it.guests(ours=False).values() if guest.conf.get("lock")]
    with it.sim.cluster.clock.lock:
        it.sim.cluster.faults.unlock(left.vmid)
    it.driver.machines.leftovers.sweep()
    until_done(lambda: swept(it, left.vmid))


@pytest.mark.parametrize("kind", ["lxc", pytest.param("qemu", marks=in_test_all)])
def test_a_machine_that_was_given_another_address_is_told_so(tmp_path, kind):  # R-B4
    with prox_lab(tmp_path) as it:
        it.stack()
        settings = {"template": "debian-gui", "kind": "lxc"}
        if kind == "qemu":
            settings = {"disk": "local:import/debian-12.qcow2"}
        image, machine = replace(TEMPLATE, settings=settings), it.machine("lab", 1)
        asked = []
        for number, how in ((31, "static"), (32, "static"), (33, "dhcp")):
            address = f"10.77.0.{number}"
            its = replace(machine, labels={"address": how}, address=address)
            it.driver.create(its, NETWORK, image, it.seed(its))
            (seen,) = it.driver.observe("lab")
            assert seen.address == address
            (guest,) = it.guests().values()
            asked.append(guest.conf["net0" if kind == "lxc" else "ipconfig0"])
        assert "ip=10.77.0.31/24" in asked[0]
        assert "ip=10.77.0.32/24" in asked[1]
        assert asked[2] == asked[1]  # one that asks for its address need not be told


class Hands:
    """Somebody who types `pct unlock` on the nodes; what is typed over SSH is tried elsewhere."""

    def __init__(self, sim) -> None:
        self.sim, self.unlocked = sim, []

    def apply(self, _guest, _wanted) -> dict:
        return {}

    def undo(self, _guest) -> None:
        pass

    def unlock(self, guest) -> None:
        self.unlocked.append(guest.id)
        with self.sim.cluster.clock.lock:
            self.sim.cluster.faults.unlock(guest.id)

    def close(self) -> None:
        pass


@in_test_all
@pytest.mark.parametrize("lost", [False, True])
def test_with_ssh_nobody_need_take_the_lock_off_what_is_left(tmp_path, lost):  # R-B2
    with prox_lab(tmp_path, narrow=False, copies=2, nodes=2) as it:
        it.stack()
        hands = Hands(it.sim)
        it.driver.machines._extras = it.driver.machines.leftovers._extras = hands
        if not lost:
            it.sim.fault("deaths", count=1, kinds="vzclone", after=0.1)
        else:
            machine = it.machine("lab", 1)
            it.lose_node_of_next_clone(unlock=False)
            with pytest.raises(NotYetError):
                Proxmox.create(it.driver, machine, NETWORK, TEMPLATE, it.seed(machine))
            until_done(it.lost)
        make(it, it.driver, 1)
        it.sim.heal()
        until_done(lambda: settled(it))
        assert lost or hands.unlocked
        assert not any(guest.conf.get("lock") for guest in it.guests(ours=False).values())


def settled(it) -> None:
    it.driver.machines.leftovers.sweep()
    if len(it.guests(ours=False)) != 1 or len(it.guests()) != 1:
        raise NotYetError(f"there are {it.guests(ours=False)}", after=0.1)


def swept(it, number: int) -> None:
    it.driver.machines.leftovers.sweep()
    if number in it.guests(ours=False) or it.uses():
        raise NotYetError(f"{number} is still there, or its slot taken", after=0.1)


def test_a_template_that_is_locked_is_waited_for_in_words(it):  # R-B2
    it.stack()
    with it.sim.cluster.clock.lock:
        it.sim.cluster.guests[9000].conf["lock"] = "backup"
    machine = it.machine("lab", 1)
    plain = super(type(it.driver), it.driver).create
    texts = set()

    def tried() -> None:
        with pytest.raises(NotYetError) as caught:
            plain(machine, NETWORK, TEMPLATE, it.seed(machine))
        texts.add(caught.value.what)
        if not any("CT is locked (backup)" in text for text in texts):
            raise NotYetError(caught.value.what, after=0.05)

    until_done(tried)
    it.sim.cluster.faults.unlock(9000)
    it.driver.create(machine, NETWORK, TEMPLATE, it.seed(machine))
    assert len(it.guests()) == 1


def test_those_who_wait_for_a_slot_are_told_for_which(it):  # R-B2
    it.stack()
    plain = super(type(it.driver), it.driver).create
    texts = set()
    # Held by somebody else: clones of our own might be over before anybody has to wait.
    gate = Gate("pve clone slot on template debian-gui (9000)", 1, 1)
    other = Ask(holder="pve lab/m9 clone", gates=(gate,))
    with contextlib.closing(open_database(it.url)) as database:
        assert Limits(database).take([other]) == [True]

    def asked(number: int) -> None:
        machine = it.machine("lab", number)
        try:
            plain(machine, NETWORK, TEMPLATE, it.seed(machine))
        except NotYetError as error:
            texts.add(error.what)
            raise

    def waits() -> None:
        for number in range(1, 6):
            try:
                asked(number)
            except NotYetError:
                continue
        if not any("waits for a clone slot on template debian-gui" in text for text in texts):
            raise NotYetError(str(texts), after=0.01)

    until_done(waits)
    assert any("(1 of 1 used)" in text for text in texts)
    with contextlib.closing(open_database(it.url)) as database:
        Limits(database).free(other.holder)
    for number in range(1, 6):
        until_done(lambda number=number: asked(number))


def test_a_node_that_is_lost_gets_no_machines_and_its_own_are_waited_for(tmp_path):  # R-B2
    with prox_lab(tmp_path, copies=3) as it:
        it.stack()
        names = [make(it, it.driver, number) for number in range(1, 4)]
        homes = {it.guest(name).node for name in names}
        assert homes == {"pve1", "pve2", "pve3"}
        lost = next(name for name in names if it.guest(name).node == "pve2")
        it.sim.fault("node", name="pve2")
        it.driver.cluster.listing(within=0)  # the one before serves for some seconds
        all_of_others = [make(it, it.driver, number) for number in (4, 5)]
        assert {it.guest(name).node for name in all_of_others} <= {"pve1", "pve3"}
        with pytest.raises(NotYetError, match="waits for node pve2"):
            super(type(it.driver), it.driver).destroy(lost)
        it.sim.heal()
        it.driver.destroy(lost)
        assert len(it.guests()) == 4


def test_a_clone_that_was_under_way_on_a_lost_node_is_made_elsewhere(tmp_path):  # R-B2
    with prox_lab(tmp_path, narrow=False, copies=2, nodes=2) as it:
        it.stack()
        plain = super(type(it.driver), it.driver).create
        machine = it.machine("lab", 1)
        full = replace(TEMPLATE, settings={**TEMPLATE.settings, "clone": "full"})
        it.lose_node_of_next_clone(unlock=False)
        with pytest.raises(NotYetError):
            plain(machine, NETWORK, full, it.seed(machine))
        until_done(it.lost)
        (half,) = it.guests(ours=False).values()
        other = it.new_driver()  # its own process has died as well
        other.create(machine, NETWORK, full, it.seed(machine))
        assert it.guest(machine.name).node != half.node
        it.sim.heal()
        until_done(lambda: swept(it, half.vmid))
        assert len(it.guests(ours=False)) == 1


def test_what_is_left_under_an_id_that_another_machine_got_is_removed(it):  # R-B2
    it.stack()
    first, second = it.machine("lab", 1), it.machine("lab", 2)
    plain = super(type(it.driver), it.driver).create

    # Asked for once: asked again it might be finished already.
    with pytest.raises(NotYetError):
        plain(first, NETWORK, TEMPLATE, it.seed(first))

    def begun() -> None:
        if not it.guests(ours=False):
            raise NotYetError("not begun", after=0.01)

    until_done(begun)
    (left,) = it.guests(ours=False)
    it.driver.close()  # its process has died
    other = it.new_driver()
    holdings = other.machines.holdings
    # What the first had begun is set aside; a sweep comes before it has got another id.
    holdings.set_aside(first.name, left)
    other.machines.leftovers.sweep()
    assert holdings.aside() == {left: first.name}
    # And before the next one, another machine reserves that id.
    held = holdings._reservations
    held.release("pve", str(first.name))
    held.reserve("pve", "vmid", str(second.name), [left])
    for machine in (first, second):
        other.create(machine, NETWORK, TEMPLATE, it.seed(machine))

    def gone() -> None:
        other.machines.leftovers.sweep()
        if holdings.aside() or it.uses():
            raise NotYetError(f"there are {it.guests(ours=False)}", after=0.05)

    until_done(gone)
    assert sorted(guest.name for guest in it.guests(ours=False).values()) == ["m1", "m2"]
    assert it.guests(ours=False) == it.guests()


def test_a_privilege_that_is_missing_is_named(it):  # R-B5
    it.stack()
    access = it.sim.cluster.access
    access.roles["PVETemplateUser"] -= {"VM.Clone"}
    with pytest.raises(RejectedError, match="Permission check failed") as caught:
        make(it, it.driver, 1)
    assert "a role with VM.Clone" in caught.value.hint
    it.driver.destroy(MachineName("lab", "m1"))
    assert it.held() == {}


def test_a_wrong_token_is_told(it):  # R-B5
    (it.place / "token").write_text("wrong")
    with pytest.raises(RejectedError) as caught:
        it.driver.observe("lab")
    assert "secret is the right one" in caught.value.hint
    assert "wrong" not in str(caught.value)


def test_a_secret_that_others_can_read_is_refused(it):  # R-B5
    (it.place / "token").chmod(0o644)
    with pytest.raises(SetupError, match="may be read by others"):
        it.driver.observe("lab")


def test_a_server_that_is_not_who_it_should_be_is_not_talked_to(it, tmp_path):  # R-B5
    other = tmp_path / "other.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(other), "-days", "1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(SetupError, match="is not who it should be"):
        it.new_driver(ca=str(other)).observe("lab")
    with pytest.raises(SetupError, match="is not who it should be"):
        it.new_driver(ca="", fingerprint="00" * 32).observe("lab")


def test_a_certificate_known_by_its_fingerprint_will_do(it):  # R-B5
    import hashlib
    import ssl

    host, _, port = it.sim.url.removeprefix("https://").partition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    seen = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    assert it.new_driver(ca="", fingerprint=seen).observe("lab") == []


def test_a_ticket_does_instead_of_a_token(it):  # R-B5
    (it.place / "token").write_text(it.sim.password)
    it.stack()
    driver = it.new_driver(token="", user="root@pam")
    make(it, driver, 1)
    assert len(it.guests()) == 1


def test_the_next_server_is_asked_when_one_does_not_answer(it):  # R-B5
    driver = it.new_driver(url=["https://127.0.0.1:9", it.sim.url])
    assert driver.observe("lab") == []
    with pytest.raises(TransientError, match="cannot be reached"):
        it.new_driver(url="https://127.0.0.1:9").observe("lab")


def test_two_control_planes_share_a_cluster(it, tmp_path):  # R-B2
    """The same names, the same range, at the same time."""
    it.stack()
    (tmp_path / "two").mkdir()
    drivers = [it.driver, it.new_driver("ffff00", database=f"sqlite:///{tmp_path}/two/e.db")]
    rosters = [
        threading.Thread(target=all_of, args=(it, driver, range(1, 7))) for driver in drivers
    ]
    for roster in rosters:
        roster.start()
    for roster in rosters:
        roster.join()
    assert len(it.guests(ours=False)) == 12
    assert len(it.guests()) == 6
    for driver in drivers:
        assert len(driver.observe("lab")) == 6
    it.driver.destroy(MachineName("lab", "m1"))
    assert len(drivers[1].observe("lab")) == 6
    cards = [guest.conf["net0"] for guest in it.guests(ours=False).values()]
    assert len(set(cards)) == 11


def test_it_is_the_driver_itself_that_is_tried():
    from drivers.proxmox_lab import Patient

    assert issubclass(Patient, Proxmox)


@pytest.mark.parametrize(("failures", "answers"), [(2, True), (3, False)])
def test_a_proxy_that_restarts_is_not_taken_for_a_cluster_that_is_gone(
    it, monkeypatch, failures, answers
):
    monkeypatch.setattr(reachability, "_AGAIN", (0, 0))
    real, asked = Api._ask, []

    def ask(self, *words):
        asked.append(words)
        if len(asked) <= failures:
            raise ApiError(Refusal.LOST, "Bad Gateway", code=502)
        return real(self, *words)

    monkeypatch.setattr(Api, "_ask", ask)
    with contextlib.nullcontext() if answers else pytest.raises(SiteAwayError, match="Bad Gateway"):
        it.driver.check_reachable()
    assert len(asked) == 3
