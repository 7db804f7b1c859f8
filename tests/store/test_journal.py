from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.errors import HeldError, RejectedError, UnknownError
from essaim.model.journal import LostError, Mark, Move, Slot
from essaim.model.runs import CommandLog, NewRun, RunState, StepState
from essaim.store.database import db_now
from essaim.store.journal import SqlJournal
from essaim.store.logs import CommandLogs
from essaim.store.schema import command_log, hold, run, slot_use, step, wait

LEASE = 3600.0
DONE = Move(state=RunState.DONE)


@pytest.fixture
def journal(database) -> SqlJournal:
    return SqlJournal(database)


def new(key: str, **more) -> NewRun:
    return NewRun(id=key, workflow="w", subject=f"on {key}", **more)


def claim(journal, key: str):
    """Claim until that run comes; the others go back."""
    others = []
    while (found := journal.claim("me", LEASE)).run.id != key:
        others.append(found)
    for other in others:
        journal.write(other.run, LEASE, Move(state=RunState.READY))
    return found


def states(journal, *keys: str) -> list[str]:
    return [journal.get(key).state.value for key in keys]


def end(journal, key: str, state: RunState = RunState.DONE) -> None:
    found = claim(journal, key)
    journal.write(found.run, LEASE, Move(state=state, frees=found.slot is not None))


def test_a_run_comes_back_as_it_was_added(journal):
    journal.add([new("a", input={"é": [1, None, "x"]}, who="ann@lab")])
    found = journal.get("a")
    assert (found.workflow, found.subject, found.input) == ("w", "on a", {"é": [1, None, "x"]})
    assert (found.state, found.who, found.epoch) == (RunState.READY, "ann@lab", 0)
    assert journal.get("A") is None  # names differ by case on every database
    assert journal.get("b") is None


def test_adding_again_changes_nothing(journal):
    journal.add([new("a", input={"n": 1})])
    journal.add([new("a", input={"n": 2}), new("b")])
    assert journal.get("a").input == {"n": 1}
    assert journal.get("b") is not None


def test_all_runs_are_added_or_none(journal):
    journal.add([new("a", holds="stack:x")])
    with pytest.raises(HeldError):
        journal.add([new("b"), new("c", holds="stack:x")])
    assert journal.get("b") is None


def test_a_held_name_says_who_since_when_and_which_run(journal):
    journal.add([new("a", holds="stack:x", who="ann@lab")])
    with pytest.raises(HeldError) as caught:
        journal.add([new("b", holds="stack:x")])
    assert caught.value.run_id == "a"
    assert "stack:x is held by run a of ann@lab on on a since 20" in caught.value.what
    assert "essaim runs show a" in caught.value.hint


@pytest.mark.parametrize("state", [RunState.DONE, RunState.FAILED, RunState.STUCK])
def test_a_run_that_ends_or_sticks_holds_nothing(journal, state):
    journal.add([new("a", holds="stack:x")])
    end(journal, "a", state)
    journal.add([new("b", holds="stack:x")])


def test_unknown_parents_and_waits_are_refused(journal):
    with pytest.raises(UnknownError):
        journal.add([new("a", parent="nobody")])
    with pytest.raises(UnknownError):
        journal.add([new("a", waits_for=("nobody",))])


def test_the_longest_due_is_claimed_first(journal):
    for key in ("c", "a", "b"):
        journal.add([new(key)])
    found = [journal.claim("me", LEASE).run for _ in range(3)]
    assert sorted(found, key=lambda run: run.wake_at) == found
    assert journal.claim("me", LEASE) is None
    assert journal.next_due() > LEASE / 2  # when the first lease runs out


def test_claims_can_keep_to_some_trees(journal):
    journal.add([new("a"), new("b"), new("b.1", parent="b"), new("b.1.1", parent="b.1")])
    found = [journal.claim("me", LEASE, roots={"b"}).run.id for _ in range(3)]
    assert sorted(found) == ["b", "b.1", "b.1.1"]
    assert journal.claim("me", LEASE, roots={"b"}) is None
    assert journal.next_due(roots={"a"}) <= 0
    assert journal.next_due(roots={"nobody"}) is None


def test_a_lease_that_runs_out_lets_another_claim(journal):
    journal.add([new("a")])
    first = journal.claim("dead", 0.0)
    second = journal.claim("me", LEASE)
    assert (second.run.id, second.run.epoch) == ("a", first.run.epoch + 1)
    with pytest.raises(LostError):
        journal.write(first.run, LEASE, DONE)
    assert journal.heartbeat("dead", LEASE, {"a": first.run.epoch}) == {"a"}
    journal.note(first.run, "too late")
    assert journal.get("a").note == ""
    with pytest.raises(LostError):
        journal.add([new("b", parent="a")], by=("a", first.run.epoch))
    journal.write(second.run, LEASE, DONE)


def test_a_run_in_the_claimers_own_hands_gets_a_new_lease_instead(journal):
    journal.add([new("a")])
    first = journal.claim("me", 0.0)
    assert journal.claim("me", LEASE, mine={"a"}) is None
    assert journal.claim("other", LEASE) is None
    journal.write(first.run, LEASE, DONE)


def test_dead_owners_lose_their_leases(journal):
    journal.add([new("a", holds="stack:x"), new("b")], owner="dead", lease=LEASE)
    journal.claim("dead", LEASE)
    journal.claim("alive", LEASE)
    assert journal.owners() == ["alive", "dead"]
    assert journal.expire(["dead"]) == 1
    assert journal.claim("me", LEASE).run.epoch == 2
    assert journal.claim("me", LEASE) is None


def test_steps_are_kept_in_order_with_their_outputs(journal):
    journal.add([new("a")])
    mine = journal.claim("me", LEASE).run
    journal.write(mine, LEASE, Move(begins="zero", position=0))
    done = Mark(name="zero", state=StepState.DONE, output='{"x": 1}')
    journal.write(mine, LEASE, Move(begins="one", position=1, marks=(done,)))
    failed = Mark(name="one", state=StepState.FAILED, attempts=3, error="no")
    undoing = Mark(name="zero", state=StepState.UNDOING)
    journal.write(mine, LEASE, Move(marks=(failed, undoing), undoing=True, error="no"))
    zero, one = journal.steps("a")
    assert (zero.name, zero.state, zero.output) == ("zero", StepState.UNDOING, {"x": 1})
    assert (one.state, one.attempts, one.error) == (StepState.FAILED, 3, "no")
    assert (zero.finished_at, one.finished_at is None) == (None, False)
    assert journal.get("a").undoing


def test_runs_wait_for_all_the_others(journal):
    journal.add([new("c", waits_for=("a", "b")), new("a"), new("b"), new("d", waits_for=("c",))])
    assert states(journal, "c", "d") == ["waiting", "waiting"]
    end(journal, "a")
    assert states(journal, "c") == ["waiting"]
    end(journal, "b")
    assert states(journal, "c", "d") == ["ready", "waiting"]
    journal.add([new("e", waits_for=("a", "b"))])
    assert states(journal, "e") == ["ready"]  # they are done already


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.STUCK])
def test_runs_do_not_start_after_a_failure(journal, state):
    journal.add([new("a"), new("b", waits_for=("a",))])
    end(journal, "a", state)
    assert states(journal, "b") == ["waiting"]


@pytest.mark.parametrize("state", [RunState.DONE, RunState.FAILED, RunState.STUCK])
def test_a_child_that_ends_wakes_its_sleeping_parent(journal, state):
    journal.add([new("p")])
    parent = claim(journal, "p")
    journal.add([new("p.1", parent="p")], by=("p", parent.run.epoch))
    journal.write(parent.run, LEASE, Move(state=RunState.READY, after=LEASE))
    end(journal, "p.1", state)
    assert journal.claim("me", LEASE).run.id == "p"


def test_a_child_that_ends_while_its_parent_looks_is_not_missed(journal):
    journal.add([new("p"), new("p.1", parent="p")])
    parent = claim(journal, "p")
    end(journal, "p.1")
    journal.write(parent.run, LEASE, Move(state=RunState.READY, after=LEASE))
    again = journal.claim("me", LEASE)
    assert again.run.id == "p"
    journal.write(again.run, LEASE, Move(state=RunState.READY, after=LEASE))
    assert journal.claim("me", LEASE) is None  # woken once, not for ever


def test_slots_are_given_in_the_order_of_asking(journal):
    slot = Slot("clone", 1)
    journal.add([new("a"), new("b"), new("c")])
    a, b, c = (claim(journal, key) for key in "abc")
    assert journal.write(a.run, LEASE, Move(begins="s", takes=slot))
    assert journal.write(a.run, LEASE, Move(takes=slot))  # its own already
    assert not journal.write(b.run, LEASE, Move(begins="s", takes=slot))
    assert not journal.write(c.run, LEASE, Move(begins="s", takes=slot))
    assert journal.get("b").note == "waits for slot clone"
    assert journal.steps("b") == []
    assert journal.claim("me", LEASE) is None
    journal.write(a.run, LEASE, Move(state=RunState.DONE, frees=True))
    b = journal.claim("me", LEASE)
    assert b.run.id == "b"
    assert journal.claim("me", LEASE) is None
    assert journal.write(b.run, LEASE, Move(begins="s", takes=slot))
    journal.abandon("b")
    assert journal.claim("me", LEASE).run.id == "c"


def test_a_crashed_holder_finds_its_slot_again(journal):
    journal.add([new("a"), new("b")])
    a = claim(journal, "a")
    journal.write(a.run, LEASE, Move(begins="s", takes=Slot("clone", 1)))
    journal.expire(["me"])
    again = claim(journal, "a")
    assert (again.run.epoch, again.slot) == (a.run.epoch + 1, "clone")
    b = claim(journal, "b")
    assert not journal.write(b.run, LEASE, Move(takes=Slot("clone", 1)))


def test_abandoning_takes_a_run_from_its_worker(journal):
    journal.add([new("a", holds="stack:x"), new("b", waits_for=("a",))])
    mine = claim(journal, "a")
    journal.write(mine.run, LEASE, Move(takes=Slot("clone", 1)))
    assert journal.abandon("a") == ["a"]
    with pytest.raises(LostError):
        journal.write(mine.run, LEASE, DONE)
    assert states(journal, "a", "b") == ["abandoned", "waiting"]
    assert journal.abandon("a") == []
    journal.add([new("c", holds="stack:x")])
    with pytest.raises(UnknownError):
        journal.abandon("nobody")


def test_abandoning_with_or_without_those_below(journal):
    journal.add([new("p"), new("p.1", parent="p"), new("p.1.1", parent="p.1")])
    assert journal.abandon("p.1", with_children=False) == ["p.1"]
    assert journal.abandon("p") == ["p", "p.1.1"]


def test_resuming_gives_fresh_attempts_to_all_who_are_stuck_around_it(journal):
    journal.add([new("p", holds="stack:x"), new("p.1", parent="p"), new("p.2", parent="p")])
    for key in ("p.1", "p.2", "p"):
        mine = claim(journal, key)
        journal.write(mine.run, LEASE, Move(begins="s"))
        failed = Mark(name="s", state=StepState.FAILED, attempts=5, error="no")
        journal.write(mine.run, LEASE, Move(state=RunState.STUCK, error="no", marks=(failed,)))
    assert sorted(journal.resume("p.1")) == ["p", "p.1"]
    assert states(journal, "p", "p.1", "p.2") == ["ready", "ready", "stuck"]
    assert journal.steps("p.1")[0].attempts == 0
    assert journal.get("p.1").error == ""
    with pytest.raises(HeldError):
        journal.add([new("q", holds="stack:x")])
    assert journal.resume("p") == ["p.2"]


def test_resuming_fails_when_the_name_is_taken_or_all_is_over(journal):
    journal.add([new("a", holds="stack:x")])
    end(journal, "a", RunState.STUCK)
    journal.add([new("b", holds="stack:x")])
    with pytest.raises(HeldError):
        journal.resume("a")
    assert states(journal, "a") == ["stuck"]
    end(journal, "b")
    with pytest.raises(RejectedError):
        journal.resume("b")
    with pytest.raises(UnknownError):
        journal.resume("nobody")


def test_superseding_spares_the_living(journal):
    journal.add([new("p", holds="stack:x"), new("p.1", parent="p")], owner="ann", lease=LEASE)
    with pytest.raises(HeldError):  # ann watches, though nothing runs at this moment
        journal.supersede("stack:x")
    journal.leave("ann")
    child = claim(journal, "p.1")
    with pytest.raises(HeldError):  # somebody carries a child
        journal.supersede("stack:x")
    journal.write(child.run, LEASE, Move(state=RunState.READY))
    journal.leave("me")
    assert journal.supersede("stack:x") == ["p", "p.1"]
    assert journal.supersede("stack:x") == []


def test_superseding_takes_stuck_runs_that_hold_no_longer(journal):
    journal.add([new("p", holds="stack:x"), new("p.1", parent="p")])
    end(journal, "p.1", RunState.STUCK)
    end(journal, "p", RunState.STUCK)
    assert journal.supersede("stack:x") == ["p", "p.1"]
    assert states(journal, "p", "p.1") == ["abandoned", "abandoned"]


def test_lists_are_filtered_and_newest_first(journal):
    for key, parent in (("a", None), ("b", None), ("b.1", "b")):
        journal.add([new(key, parent=parent)])
    end(journal, "a")
    assert {run.id for run in journal.list()} == {"a", "b", "b.1"}
    assert {run.id for run in journal.list(roots=True)} == {"a", "b"}
    assert [run.id for run in journal.list(subject="on b")] == ["b"]
    assert [run.id for run in journal.list(states=[RunState.DONE])] == ["a"]
    assert journal.list(workflow="other") == []
    created = [run.created_at for run in journal.list(limit=2)]
    assert created == sorted(created, reverse=True)
    assert [run.id for run in journal.children("b")] == ["b.1"]


def test_durations_are_of_the_latest_steps_done(journal, database):
    journal.add([new("a")])
    mine = claim(journal, "a").run
    journal.write(mine, LEASE, Move(begins="one"))
    done = Mark(name="one", state=StepState.DONE, output="{}")
    journal.write(mine, LEASE, Move(begins="two", position=1, marks=(done,)))
    database.write(
        lambda c: c.execute(
            sa.update(step).where(step.c.name == "one").values(started_at=step.c.finished_at - 1500)
        )
    )
    assert journal.durations() == {("w", "one"): [1.5]}


def test_pruning_forgets_old_trees_as_a_whole(journal, database):
    logs = CommandLogs(database)
    journal.add([new("p"), new("p.1", parent="p"), new("q"), new("q.1", parent="q"), new("r")])
    for key in ("p", "p.1", "q.1"):
        mine = claim(journal, key).run
        journal.write(mine, LEASE, Move(begins="s"))
        journal.write(mine, LEASE, DONE)
        logs.add([log(key)])
    long_ago = sa.update(run).values(finished_at=run.c.finished_at - 10_000_000)
    database.write(lambda c: c.execute(long_ago))
    end(journal, "r")
    assert journal.prune(older_than=3600) == 2
    assert {run.id for run in journal.list()} == {"q", "q.1", "r"}  # q is not over yet
    assert [log.run for log in logs.read(limit=9)] == ["q.1"]
    assert journal.steps("p") == []
    assert journal.prune(older_than=3600) == 0


def log(key: str) -> CommandLog:
    return CommandLog(
        run=key,
        step="s",
        machine="x/y",
        command="true",
        exit_code=0,
        output="",
        started_at=1.5,
        seconds=0.25,
    )


def test_nothing_is_left_when_all_is_over(journal, database):
    journal.add([new("a", holds="stack:x"), new("b", waits_for=("a",), holds="stack:y")])
    mine = claim(journal, "a")
    journal.write(mine.run, LEASE, Move(begins="s", takes=Slot("clone", 1)))
    journal.write(mine.run, LEASE, Move(state=RunState.DONE, frees=True))
    journal.abandon("b")
    for table in (hold, slot_use, wait, command_log):
        assert database.read(lambda c, table=table: c.execute(sa.select(table)).all()) == []
    assert journal.next_due() is None


def test_the_databases_clock_is_in_milliseconds(database):
    first, second = (database.read(lambda c: c.execute(sa.select(db_now())).scalar()) for _ in "12")
    assert isinstance(first, int)
    assert 1_600_000_000_000 < first <= second < first + 600_000
