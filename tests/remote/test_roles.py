"""Steps, values, probes and good-byes of roles, on a real machine."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from essaim.model.errors import RejectedError
from essaim.model.roles import Leave, Provide, Ready, Retry, RoleStep
from essaim.remote import roles
from essaim.remote.logs import LONGEST, MASK
from essaim.remote.roles import Given
from remote.rig import until


@pytest.fixture
def place(box, tmp_path):
    """A directory of the machine no other test uses."""
    path = f"/srv/{tmp_path.name}"
    box.enter("mkdir", "-p", path)
    yield path
    box.enter("rm", "-rf", path)


@pytest.fixture
def apply(shared_remote, box, facts, logs, make_role):
    """Run the given steps as a role's; gives how many commands ran."""
    box.enter("rm", "-rf", "/var/lib/essaim/worker")

    def run(*steps, given=facts):
        before = len(logs.kept)
        role = make_role(run=steps)
        roles.run_steps(shared_remote, box.target, role, given, logs.record, logs.note)
        return len(logs.kept) - before

    return run


class TestWhenAStepIsDue:
    """R-C2: re-runnable at will; a step runs when its docstring says so and never otherwise."""

    def test_with_nothing_said_once_for_each_content(self, apply):
        step = RoleStep(name="s", do="true", env={"A": "1"})
        assert [apply(step), apply(step)] == [1, 0]
        assert [apply(replace(step, do="true;")), apply(replace(step, do="true;"))] == [1, 0]
        assert [apply(replace(step, env={"A": "2"})), apply(replace(step, env={"A": "2"}))] == [
            1,
            0,
        ]
        assert apply(step) == 1, "only the last content is remembered"

    def test_a_rendered_value_is_content_too(self, apply, facts):
        step = RoleStep(name="s", do="true", env={"A": "{{ vars.a }}"})
        one, two = (replace(facts, vars={"a": value}) for value in "12")
        assert [apply(step, given=one), apply(step, given=one)] == [1, 0]
        assert apply(step, given=two) == 1

    def test_unless_decides_each_time(self, apply, box, place):
        step = RoleStep(name="s", unless=f"test -e {place}/f", do="true")
        assert [apply(step), apply(step)] == [1, 1]
        box.path(f"{place}/f").touch()
        assert apply(step) == 0
        assert apply(replace(step, do="true;")) == 0
        box.path(f"{place}/f").unlink()
        assert apply(step) == 1

    def test_a_watched_file_that_changes(self, apply, box, place):
        step = RoleStep(name="s", do="true", watch=(f"{place}/f", f"{place}/g"))
        assert [apply(step), apply(step)] == [1, 0]
        for name in ("f", "g"):
            box.path(f"{place}/{name}").write_text("new")
            assert [apply(step), apply(step)] == [1, 0]
        box.path(f"{place}/f").unlink()
        assert [apply(step), apply(step)] == [1, 0]
        assert [apply(replace(step, do="true;")), apply(replace(step, do="true;"))] == [1, 0]

    def test_unless_and_watch_together(self, apply, box, place):
        step = RoleStep(name="s", unless=f"test -e {place}/ok", do="true", watch=(f"{place}/f",))
        box.path(f"{place}/ok").touch()
        assert [apply(step), apply(step)] == [1, 0], "never succeeded with this file"
        box.path(f"{place}/f").write_text("new")
        assert [apply(step), apply(step)] == [1, 0]
        assert apply(replace(step, do="true;")) == 0, "nothing is lacking and no file changed"
        box.path(f"{place}/ok").unlink()
        assert [apply(step), apply(step)] == [1, 1]

    def test_a_step_that_writes_the_file_it_watches(self, apply, place):
        step = RoleStep(name="s", do=f"date +%N >>{place}/f", watch=(f"{place}/f",))
        assert [apply(step), apply(step)] == [1, 0]

    def test_a_step_that_failed_is_still_due(self, apply, box, place):
        step = RoleStep(name="s", do=f"test -e {place}/ok")
        for _ in range(2):
            with pytest.raises(RejectedError):
                apply(step)
        box.path(f"{place}/ok").touch()
        assert [apply(step), apply(step)] == [1, 0]

    def test_set_e_and_exit_mean_what_they_say(self, apply):
        with pytest.raises(RejectedError):
            apply(RoleStep(name="s", do="set -e; false; true"))
        unless = "set -e; false; true"
        assert apply(RoleStep(name="t", unless=unless, do="exit 0; false")) == 1
        assert apply(RoleStep(name="t", unless="exit 0; false", do="true")) == 0

    def test_names_that_are_no_file_names(self, apply):
        step = RoleStep(name="a/../b c", do="true")
        assert [apply(step), apply(step)] == [1, 0]


class TestHowAStepRuns:
    def test_steps_run_in_order_with_their_variables(self, apply, box, logs, place, facts):
        steps = [
            RoleStep(
                name=f"s{n}",
                do=f'echo "$N of $STACK" >>{place}/log; cat; echo done',
                env={"N": str(n), "STACK": "{{ stack }}"},
            )
            for n in (1, 2, 3)
        ]
        assert apply(*steps) == 3
        assert box.path(f"{place}/log").read_text() == "1 of lab\n2 of lab\n3 of lab\n"
        assert logs.notes == ["s1", "s2", "s3"]
        first = logs.kept[0]
        assert first["machine"] == "lab/box-1"
        assert first["command"] == f"worker/s1: {steps[0].do}"
        assert (first["exit_code"], first["output"]) == (0, "done\n")
        assert abs(first["started_at"] - time.time()) < 600
        assert 0 < first["seconds"] < 60

    def test_the_script_is_not_a_template(self, apply, logs):
        apply(RoleStep(name="s", do="echo '{{ stack }}'"))
        assert logs.kept[0]["output"] == "{{ stack }}\n"

    def test_a_failure_stops_the_role_and_says_where_to_look(self, apply, logs):
        steps = (
            RoleStep(name="bad", do="echo first; echo last >&2; exit 3"),
            RoleStep(name="never", do="true"),
        )
        with pytest.raises(RejectedError) as caught:
            apply(*steps)
        assert caught.value.what == "lab/box-1: role worker: step bad exited 3: last"
        assert caught.value.hint == "essaim logs lab/box-1"
        assert [log["exit_code"] for log in logs.kept] == [3]
        assert logs.kept[0]["output"] == "first\nlast\n"

    def test_it_is_tried_again_as_often_as_it_says(self, apply, box, logs, place):
        do = f"echo x >>{place}/tries; test $(wc -l <{place}/tries) -ge 3"
        assert apply(RoleStep(name="s", do=do, retry=Retry(times=2, wait=0.01))) == 3
        assert [log["exit_code"] for log in logs.kept] == [1, 1, 0]
        assert logs.notes[-1] == "s, attempt 3 of 3"
        box.path(f"{place}/tries").unlink()
        with pytest.raises(RejectedError, match="step t exited 1"):
            apply(RoleStep(name="t", do=do, retry=Retry(times=1, wait=0.01)))

    def test_time_over_is_a_failure_and_the_output_is_kept(self, apply, box, logs):
        with pytest.raises(RejectedError, match=r"step slow did not end in 12 s: begun"):
            apply(RoleStep(name="slow", do="echo begun; sleep 4801", within=12))
        assert logs.kept[0]["exit_code"] == -1
        assert logs.kept[0]["output"].startswith("begun\n")
        until(lambda: not box.processes("sleep 4801"))

    def test_a_daemon_that_keeps_its_output_open(self, apply, box, logs):
        # Neither script may find itself in the process list.
        step = RoleStep(name="d", unless="pgrep -f 'sleep 4802'", do="sleep 4802 & echo up")
        assert [apply(step), apply(step)] == [1, 0]
        assert logs.kept[0]["output"] == "up\n"
        assert box.processes("sleep 4802")

    def test_secrets_are_masked_wherever_they_are_printed(self, apply, logs, facts):
        key = "sesame-open\nsecond-line-of-it"
        given = replace(facts, needs={"key": Given(key, secret=True), "who": Given("me")})
        do = "printf 'a sesame-open\\nsecond-line-of-it b %s\\n' \"$WHO\"; exit 1"
        step = RoleStep(name="s", do=do, env={"WHO": "{{ needs.who }}"})
        with pytest.raises(RejectedError) as caught:
            apply(step, given=given)
        assert caught.value.what.endswith(f"{MASK} b me")
        assert "sesame-open" not in str(logs.kept) + caught.value.what
        assert "second-line" not in str(logs.kept) + caught.value.what

    def test_only_the_end_of_a_long_output_is_kept(self, apply, logs):
        apply(RoleStep(name="s", do="seq 100000"))
        assert logs.kept[0]["output"].endswith("\n100000\n")
        assert LONGEST < len(logs.kept[0]["output"]) < LONGEST + 100


class TestValues:
    """R-C1: read what a controller produces, then give it to the workers."""

    def test_a_template_and_a_command(self, shared_remote, box, facts, make_role):
        role = make_role(
            provides={
                "leader": Provide(value="{{ machine.address }}"),
                "name": Provide(command="echo noise >&2; hostname; echo"),
                "token": Provide(command="echo sesame", secret=True),
            }
        )
        given = {
            name: roles.provided(shared_remote, box.target, role, name, facts)
            for name in role.provides
        }
        assert given["leader"] == Given("10.77.0.2")
        assert given["name"] == Given("box-1")
        assert given["token"] == Given("sesame", secret=True)
        assert "sesame" not in repr(given)

    def test_a_command_that_fails(self, shared_remote, box, make_role):
        role = make_role(
            provides={
                "open": Provide(command="echo half; exit 2"),
                "token": Provide(command="echo half; exit 2", secret=True),
            }
        )
        with pytest.raises(RejectedError, match="value open exited 2: half"):
            roles.provided(shared_remote, box.target, role, "open", None)
        with pytest.raises(RejectedError) as caught:
            roles.provided(shared_remote, box.target, role, "token", None)
        assert "half" not in caught.value.what

    def test_a_digest_tells_changes_and_nothing_else(self):
        needs = {"a": Given("1", secret=True), "b": Given("2")}
        digest = roles.needs_digest(needs, b"key")
        assert digest == roles.needs_digest(dict(reversed(needs.items())), b"key")
        assert digest != roles.needs_digest(needs, b"other")
        assert digest != roles.needs_digest(needs | {"b": Given("3")}, b"key")
        assert roles.needs_digest({"a": Given("bc")}, b"k") != roles.needs_digest(
            {"ab": Given("c")}, b"k"
        )


class TestProbe:
    def test_ready_or_why_not(self, shared_remote, box, facts, logs, make_role):
        up = f"/srv/{time.monotonic_ns()}"
        role = make_role(ready=Ready(command=f"echo not yet; test -e {up}", within=30))
        look = (shared_remote, box.target, role, facts, logs.record)
        assert roles.probe(*look) == "exit 1: not yet"
        assert logs.kept == []
        box.path(up).touch()
        assert roles.probe(*look) is None
        assert logs.kept[0]["command"].startswith("worker/ready: ")

    def test_a_probe_does_not_find_itself(self, shared_remote, box, facts, logs, make_role):
        role = make_role(ready=Ready(command="pgrep -f no-such-daemon"))
        assert roles.probe(shared_remote, box.target, role, facts, logs.record) == "exit 1"

    def test_a_probe_that_hangs_is_not_ready(self, shared_remote, box, facts, logs, make_role):
        role = make_role(ready=Ready(command="sleep 4803", within=30))
        look = (shared_remote, box.target, role, facts, logs.record)
        # Of a busy machine it may be said that it does not even begin in that time.
        until(lambda: "did not end in 3 s" in roles.probe(*look, within=3))
        until(lambda: not box.processes("sleep 4803"))

    def test_a_role_without_a_probe_is_ready(self, facts, logs, make_role):
        assert roles.probe(None, None, make_role(), facts, logs.record) is None


class TestLeave:
    def test_it_runs_elsewhere_with_the_facts_of_who_leaves(
        self, shared_remote, boxes, facts, logs, make_role
    ):
        other = boxes[1]
        goodbye = Leave(
            name="drain",
            on="leader",
            do='echo "$NODE leaves $(hostname)" >/srv/drained',
            env={"NODE": "{{ machine.hostname }}"},
        )
        role = make_role(leave=(goodbye, Leave(name="no", on="else", do="false")))
        roles.leave(shared_remote, other.target, role, facts, logs.record, steps=[goodbye])
        assert other.path("/srv/drained").read_text() == "box-1 leaves box-2\n"
        assert logs.kept[0]["machine"] == "lab/box-2"
        with pytest.raises(RejectedError, match=r"role worker: no on lab/box-2 exited 1"):
            roles.leave(shared_remote, other.target, role, facts, logs.record)
