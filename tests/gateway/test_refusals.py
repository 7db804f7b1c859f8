"""Who holds the key of a lease is told why it leads nowhere; anybody else is told nothing."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.gateway.plane import PlaneRoutes
from essaim.gateway.routes import Refusal
from essaim.gateway.sentences import sentence
from essaim.model.fleet import LeaseState, NodeState, Wish
from essaim.store.schema import lease as lease_table
from essaim.usecases import leases as use
from gateway.rig import ACCOUNT, new_key, public, run
from usecases.plane import KEY, Plane

DAY = 86_400_000


@pytest.fixture
def ended(fleet):
    """A lease that was released."""
    del fleet.book.leases[ACCOUNT]
    fleet.book.refusals[ACCOUNT] = Refusal(
        keys=(public(fleet.client_key),),
        sentence="released",
        fields={"lease": ACCOUNT, "when": "2026-11-18 00:12 UTC"},
    )
    return fleet


def test_the_holder_of_the_key_is_told_what_happened(ended):
    for flags in ([], ["-tt"]):
        done = ended.ssh("true", flags=flags)
        assert done.returncode == 255
        shown = done.stderr + done.stdout
        assert b"lease l-" in shown
        assert b"you released it" in shown
        assert b"vous l'avez rendue" in shown
        assert b"2026-11-18 00:12 UTC" in shown
        assert b"Permission denied" not in shown
    assert [each.refused for each in ended.book.sessions.values()] == [
        sentence("released", lease=ACCOUNT, when="2026-11-18 00:12 UTC").splitlines()[0]
    ] * 2


@pytest.mark.parametrize("program", ["scp", "sftp", "rsync"])
def test_programs_that_copy_show_it_too(ended, tmp_path, program):
    (tmp_path / "file").write_text("x")
    far = f"{ACCOUNT}@gateway:"
    words = {
        "scp": ["scp", *ended.options(), f"{tmp_path}/file", far],
        "sftp": ["sftp", *ended.options(), "-b", "-", far],
        "rsync": ["rsync", "-e", " ".join(["ssh", *ended.options()]), f"{tmp_path}/file", far],
    }[program]
    done = run(words)
    assert done.returncode != 0
    assert b"you released it" in done.stderr


def test_a_stranger_cannot_tell_an_ended_lease_from_none(ended, tmp_path):
    stranger = new_key(tmp_path / "stranger")

    def seen(user):
        done = ended.ssh("true", key=stranger, user=user)
        return done.returncode, (done.stdout + done.stderr).replace(user.encode(), b"NAME")

    assert seen(ACCOUNT) == seen("l-nobody00")
    assert b"Permission denied" in seen(ACCOUNT)[1]


class Here:
    """A control plane whose leases the gateway asks about."""

    def __init__(self, database):
        self.plane = Plane(database)
        self.routes = PlaneRoutes(self.plane)
        self.ann = self.plane.user("ann")
        self.node = self.plane.ready("one")

    def rent(self, count=1):
        made = self.plane.leases.rent(self.ann.id, Wish(count=count), KEY)
        self.plane.leases.move(made.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
        return made.id

    def end(self, lease, **values):
        why = self.plane.leases.get(lease).reason
        self.plane.leases.move(lease, LeaseState.ENDED, of=[LeaseState.ENDING], reason=why)
        if values:
            change = sa.update(lease_table).where(lease_table.c.id == lease).values(**values)
            self.plane.database.write(lambda c: c.execute(change))


@pytest.fixture
def here(database):
    return Here(database)


def test_why_a_lease_is_over_is_known(here):
    routes, plane = here.routes, here.plane
    lease = here.rent()
    assert routes.refusal(lease) is None
    two = routes.refusal(f"{lease}.2")
    assert (two.sentence, two.fields["count"], two.fields["number"]) == ("one_machine", 1, 2)
    assert two.keys == (KEY,)

    use.release(plane, here.ann, lease)
    assert routes.lease(lease) is None
    assert routes.refusal(lease).sentence == "released"
    here.end(lease)
    told = routes.refusal(f"{lease}.2")
    assert told.sentence == "released"
    assert told.fields["when"].endswith(" UTC")


def test_each_reason_has_its_sentence(here):
    for reason, expected in {
        "its time is over": "ran_out",
        "released by ann": "released",
        "released by carol": "released_by",
        "no machine was left for it": "over_because",
        "": "ended",
    }.items():
        lease = here.rent()
        here.plane.leases.release(lease, reason=reason)
        here.end(lease)
        told = here.routes.refusal(lease)
        assert told.sentence == expected
        shown = sentence(told.sentence, **told.fields)
        assert lease in shown
        assert "carol" in shown or expected != "released_by"
        here.plane.fleet.move(here.node.id, NodeState.READY, of=[NodeState.HELD])


def test_one_that_waits_says_so(here):
    lease = here.plane.leases.rent(here.ann.id, Wish(cores=1000), KEY).id
    assert here.routes.refusal(lease).sentence == "queued"


def test_it_is_not_told_for_ever_nor_to_who_is_disabled(here):
    lease = here.rent()
    here.plane.leases.release(lease, reason="its time is over")
    here.end(lease)
    assert here.routes.refusal(lease) is not None
    here.plane.people.change("ann", {"disabled": True})
    assert here.routes.refusal(lease) is None
    here.plane.people.change("ann", {"disabled": False})
    long_ago = here.plane.leases.get(lease).ended_at - 31 * DAY
    here.end(lease, ended_at=long_ago)
    assert here.routes.refusal(lease) is None
    assert here.routes.refusal("l-nobody00") is None
