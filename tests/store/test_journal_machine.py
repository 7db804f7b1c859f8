"""The journal against a simple model of it, with random histories."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from essaim.model.errors import HeldError, RejectedError
from essaim.model.journal import LostError, Mark, Move, Slot
from essaim.model.runs import NewRun, RunState, StepState
from essaim.store.database import db_now, open_database
from essaim.store.journal import SqlJournal
from essaim.store.schema import hold, metadata, run, slot_use

LONG = 3600.0
OWNERS = ["ann", "bob"]
HOLDS = ["stack:x", "stack:y"]
CAPACITY = {"clone": 1, "start": 2}
READY, RUNNING, WAITING, STUCK = (
    RunState.READY,
    RunState.RUNNING,
    RunState.WAITING,
    RunState.STUCK,
)


@dataclass
class Known:
    """What the model knows of a run."""

    parent: str | None
    holds: str | None
    state: RunState
    due: bool = False
    owner: str = ""
    epoch: int = 0
    woken: bool = False
    waits: set[str] = field(default_factory=set)
    slot: str | None = None
    waits_slot: str | None = None


@dataclass(frozen=True)
class Held:
    """A claim as a worker remembers it, perhaps long after it was lost."""

    run: object
    owner: str


class JournalMachine(RuleBasedStateMachine):
    """Workers and people at work on one journal."""

    claims = Bundle("claims")

    def __init__(self, database) -> None:
        super().__init__()
        self.database = database
        self.journal = SqlJournal(database)
        self.runs: dict[str, Known] = {}
        self.held: dict[str, tuple[str, str]] = {}  # name -> run, watcher
        self.queued = 0
        self.steps = 0  # people meddle less often than workers work

    @initialize()
    def empty(self) -> None:
        for table in metadata.sorted_tables:
            self.database.write(lambda c, table=table: c.execute(sa.delete(table)))
        # A family to begin with: three children, of which the last waits for the others.
        self.put("r0", set(), None, HOLDS[0], OWNERS[0])
        self.put("r1", set(), "r0", None, OWNERS[0])
        self.put("r2", set(), "r0", None, OWNERS[0])
        self.put("r3", {"r1", "r2"}, "r0", None, OWNERS[0])

    def change(self, which, **values) -> None:
        statement = sa.update(run).where(which).values(**values)
        self.database.write(lambda c: c.execute(statement))

    # What people do.

    @rule(
        data=st.data(), holds=st.sampled_from([None, None, *HOLDS]), owner=st.sampled_from(OWNERS)
    )
    def add(self, data, holds, owner) -> None:
        some = st.sampled_from(sorted(self.runs))
        waits = data.draw(st.sets(some, max_size=2))
        parent = data.draw(st.none() | some)
        self.put(f"r{len(self.runs)}", waits, parent, holds, owner)

    def put(self, new, waits, parent, holds, owner) -> None:
        asked = NewRun(
            id=new, workflow="w", subject="s", parent=parent, holds=holds, waits_for=tuple(waits)
        )
        if holds in self.held:
            with pytest.raises(HeldError) as caught:
                self.journal.add([asked], owner=owner, lease=LONG)
            assert caught.value.run_id == self.held[holds][0]
            return
        self.journal.add([asked], owner=owner, lease=LONG)
        self.journal.add([asked], owner=owner, lease=LONG)  # a second time changes nothing
        left = {on for on in waits if self.runs[on].state is not RunState.DONE}
        self.runs[new] = Known(parent, holds, WAITING if left else READY, due=not left, waits=left)
        if holds:
            self.held[holds] = (new, owner)

    @rule(data=st.data(), with_children=st.booleans())
    @precondition(lambda self: self.steps % 4 == 0)
    def abandon(self, data, with_children) -> None:
        top = data.draw(st.sampled_from(sorted(self.runs)))
        wanted = {top, *(self.below(top) if with_children else ())}
        ends = {key for key in wanted if not self.runs[key].state.over}
        assert set(self.journal.abandon(top, with_children=with_children)) == ends
        self.give_up(ends)

    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def resume(self, data, owner) -> None:
        top = data.draw(st.sampled_from(sorted(self.runs)))
        if self.runs[top].state.over:
            with pytest.raises(RejectedError):
                self.journal.resume(top)
            return
        around = {top, *self.below(top), *self.above(top)}
        stuck = {key for key in around if self.runs[key].state is STUCK}
        names = [self.runs[key].holds for key in stuck if self.runs[key].holds]
        if any(name in self.held for name in names) or len(set(names)) < len(names):
            with pytest.raises(HeldError):
                self.journal.resume(top, owner=owner, lease=LONG)
            return
        assert set(self.journal.resume(top, owner=owner, lease=LONG)) == stuck
        for key in stuck:
            known = self.runs[key]
            known.state, known.due, known.woken = READY, True, False
            if known.holds:
                self.held[known.holds] = (key, owner)
        for name, (key, _owner) in list(self.held.items()):
            if key in around:
                self.held[name] = (key, owner)

    @rule(name=st.sampled_from(HOLDS))
    @precondition(lambda self: self.steps % 4 == 1)
    def supersede(self, name) -> None:
        keepers = [
            key for key, known in self.runs.items() if known.holds == name and not known.state.over
        ]
        families = {key for keeper in keepers for key in (keeper, *self.below(keeper))}
        live = any(self.runs[k].state is RUNNING and not self.runs[k].due for k in families)
        watched = name in self.held and self.held[name][1]
        if live or watched:
            with pytest.raises(HeldError):
                self.journal.supersede(name)
            return
        ends = {key for key in families if not self.runs[key].state.over}
        assert set(self.journal.supersede(name)) == ends
        self.give_up(ends)

    # What workers do.

    @rule(target=claims, owner=st.sampled_from(OWNERS))
    def claim(self, owner):
        due = {key for key, known in self.runs.items() if known.due}
        # All due since the same moment: which is first must not depend on how fast this ran.
        self.change(run.c.due_at <= db_now(), due_at=1)
        claim = self.journal.claim(owner, LONG)
        if claim is None:
            assert not due
            return multiple()
        known = self.runs[claim.run.id]
        assert claim.run.id in due
        assert claim.slot == known.slot
        known.state, known.due, known.owner, known.woken = RUNNING, False, owner, False
        known.epoch += 1
        assert claim.run.epoch == known.epoch
        if known.holds in self.held and self.held[known.holds][0] == claim.run.id:
            self.held[known.holds] = (claim.run.id, owner)
        return Held(claim.run, owner)

    @rule(target=claims, owner=st.sampled_from(OWNERS))
    def claim_too(self, owner):
        return self.claim(owner)

    @rule(held=claims, slot=st.sampled_from(sorted(CAPACITY)))
    def take_slot(self, held, slot) -> None:
        known = self.runs[held.run.id]
        move = Move(begins="step", takes=Slot(slot, CAPACITY[slot]), frees=known.slot is not None)
        if not self.current(held):
            self.refused(held, move)
            return
        if known.slot is not None:
            self.free([held.run.id])
        users = [key for key, other in self.runs.items() if other.slot == slot]
        free = len(users) < CAPACITY[slot]
        before = self.waiting()
        assert self.journal.write(held.run, LONG, move) is free
        self.adopt_woken(before)
        if free:
            known.slot, known.waits_slot = slot, None
            known.due = False  # each write renews the lease
        else:
            known.state, known.due, known.owner = READY, False, ""
            known.waits_slot = slot
            self.queued += 1  # likewise: two may begin to wait within one millisecond
            newly = sa.and_(run.c.id == held.run.id, run.c.slot_since > 1_000_000)
            self.change(newly, slot_since=self.queued)

    @rule(held=consumes(claims), after=st.sampled_from([0.0, LONG]))
    def pause(self, held, after) -> None:
        if not self.current(held):
            self.refused(held, Move(state=READY))
            return
        assert self.journal.write(held.run, LONG, Move(state=READY, after=after))
        known = self.runs[held.run.id]
        known.state, known.owner, known.due = READY, "", after == 0 or known.woken

    @rule(
        held=consumes(claims),
        state=st.sampled_from([RunState.DONE, RunState.FAILED, RunState.STUCK]),
    )
    def end(self, held, state) -> None:
        known = self.runs[held.run.id]
        marks = (Mark(name="step", state=StepState.DONE, output='{"a": 1}'),)
        move = Move(state=state, marks=marks, frees=known.slot is not None)
        if not self.current(held):
            self.refused(held, move)
            return
        before = self.waiting()
        if known.slot is not None:
            self.free([held.run.id])
        assert self.journal.write(held.run, LONG, move)
        self.adopt_woken(before)
        known.state, known.owner, known.due, known.waits_slot = state, "", False, None
        self.unhold({held.run.id})
        if state is RunState.DONE:
            for other in self.runs.values():
                other.waits.discard(held.run.id)
                if other.state is WAITING and not other.waits:
                    other.state, other.due = READY, True
        self.wake_parent(known.parent)

    @rule(held=claims)
    def heartbeat(self, held) -> None:
        lost = self.journal.heartbeat(held.owner, LONG, {held.run.id: held.run.epoch})
        assert bool(lost) is not self.current(held)
        if self.current(held):
            self.runs[held.run.id].due = False

    @rule(owner=st.sampled_from(OWNERS))
    def crash(self, owner) -> None:
        self.journal.expire([owner])
        for known in self.runs.values():
            if known.state is RUNNING and known.owner == owner:
                known.due = True
        for name, (key, watcher) in list(self.held.items()):
            if watcher == owner:
                self.held[name] = (key, "")

    # What must always hold.

    @invariant()
    def the_journal_agrees(self) -> None:
        self.steps += 1
        rows = {row.id: row for row in self.read(sa.select(run))}
        uses = {row.run: row.slot for row in self.read(sa.select(slot_use))}
        assert set(rows) == set(self.runs)
        for key, known in self.runs.items():
            row = rows[key]
            assert (row.state, row.epoch, row.owner) == (known.state, known.epoch, known.owner), key
            assert uses.get(key) == known.slot, key
            assert row.waits_slot == known.waits_slot, key
        holds = {row.name: row.run for row in self.read(sa.select(hold))}
        assert holds == {name: key for name, (key, _watcher) in self.held.items()}

    @invariant()
    def no_slot_is_overfull(self) -> None:
        users = [known.slot for known in self.runs.values() if known.slot]
        assert all(users.count(slot) <= most for slot, most in CAPACITY.items())

    # How the model does it.

    def read(self, statement):
        return self.database.read(lambda c: c.execute(statement).all())

    def current(self, held) -> bool:
        known = self.runs[held.run.id]
        return known.state is RUNNING and known.epoch == held.run.epoch

    def refused(self, held, move) -> None:
        with pytest.raises(LostError):
            self.journal.write(held.run, LONG, move)

    def below(self, top: str) -> set[str]:
        found = {key for key, known in self.runs.items() if known.parent == top}
        return found.union(*(self.below(key) for key in found))

    def above(self, key: str) -> set[str]:
        parent = self.runs[key].parent
        return set() if parent is None else {parent, *self.above(parent)}

    def waiting(self) -> set[str]:
        """Those asleep until a slot is free."""
        return {
            key
            for key, known in self.runs.items()
            if known.waits_slot and known.state is READY and not known.due
        }

    def free(self, keys) -> None:
        self.expected_wakes = [self.runs[key].slot for key in keys if self.runs[key].slot]
        for key in keys:
            self.runs[key].slot = None

    expected_wakes: list[str] = []  # noqa: RUF012 - replaced, never changed

    def adopt_woken(self, before: set[str]) -> None:
        """See that each freed slot woke one who waited longest for it."""
        freed, self.expected_wakes = self.expected_wakes, []
        for slot in freed:
            asleep = {key for key in before if self.runs[key].waits_slot == slot}
            asleep = {key for key in asleep if self.runs[key].state is READY}
            rows = {row.id: row for row in self.read(sa.select(run).where(run.c.id.in_(asleep)))}
            now = self.database.read(lambda c: c.execute(sa.select(db_now())).scalar())
            woken = {key for key, row in rows.items() if row.due_at <= now}
            assert len(woken) == min(1, len(asleep)) or freed.count(slot) > 1
            for key in woken:
                rest = asleep - woken
                assert all(rows[key].slot_since <= rows[other].slot_since for other in rest)
                self.runs[key].due = True

    def wake_parent(self, parent) -> None:
        known = self.runs.get(parent)
        if known is not None and known.state in (READY, RUNNING):
            known.woken = True
            known.due = known.due or known.state is READY

    def unhold(self, keys) -> None:
        self.held = {name: held for name, held in self.held.items() if held[0] not in keys}

    def give_up(self, ends) -> None:
        before = self.waiting() - ends
        self.free(sorted(ends))
        for key in ends:
            known = self.runs[key]
            known.state, known.owner, known.due = RunState.ABANDONED, "", False
            known.epoch += 1
            known.waits, known.waits_slot = set(), None
        self.adopt_woken(before)
        self.unhold(ends)
        for parent in {self.runs[key].parent for key in ends} - ends:
            self.wake_parent(parent)


def check(database, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: JournalMachine(database),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_on_sqlite(sqlite):
    check(sqlite, examples=60, steps=50)


def test_on_servers(servers, new_database):
    for kind in ("mariadb", "postgresql"):
        database = open_database(new_database(kind))
        check(database, examples=6, steps=30)
        database.close()
