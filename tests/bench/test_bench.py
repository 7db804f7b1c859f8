"""The table tells the truth, and the readers of /proc agree with processes we know."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from essaim.model.names import MachineName
from essaim.model.roles import Role, RoleFile, RoleStep
from essaim.model.stacks import Machine, Network, Site, Size, Stack
from essaim_lab.bench import __main__ as command
from essaim_lab.bench import computer, playbook, processes, timing
from essaim_lab.bench.rows import CannotRunError, Peer, Row, figure, number, table
from patience import in_test_all


def row(**changes):
    return Row(**{"what": "thing", "value": 2.0, "unit": "s", "command": "do thing", **changes})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "-"),
        ({"most": 2}, "ok"),
        ({"most": 1.9}, "MISSED"),
        ({"least": 3}, "MISSED"),
        ({"least": 2}, "ok"),
        ({"peer": Peer(name="p", value=1)}, "-"),
        ({"peer": Peer(name="p", value=10), "least_ratio": 5}, "ok"),
        ({"peer": Peer(name="p", value=9), "least_ratio": 5}, "MISSED"),
        ({"peer": Peer(name="p", note="not here"), "least_ratio": 5}, "-"),
        ({"peer": Peer(name="p", value=1), "least_ratio": 1, "most": 3}, "MISSED"),
        ({"peer": Peer(name="p", note="not here"), "least_ratio": 1, "most": 3}, "ok"),
    ],
)
def test_a_verdict_counts_targets_and_comparisons(changes, verdict):
    assert row(**changes).verdict == verdict


def test_a_ratio_says_how_many_times_better_we_are():
    peer = Peer(name="p", value=8)
    assert row(peer=peer).ratio == 4
    assert row(peer=peer, more_is_better=True).ratio == 0.25
    assert row(peer=Peer(name="p")).ratio is None
    assert row(peer=peer, value=0.0).ratio is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (1.5, "1.5"), (99.94, "99.9"), (100, "100"), (12345.6, "12,346")],
)
def test_a_number_has_as_many_digits_as_it_means(value, text):
    assert number(value) == text


def test_a_figure_without_a_unit_has_no_blank():
    assert figure(2, "") == "2"


def test_a_peer_that_was_stopped_shows_the_least_it_needs():
    cells = row(peer=Peer(name="slow", value=300, stopped=True)).cells()
    assert cells[4:6] == (">300 s", ">150")


def test_a_table_is_aligned_and_says_what_is_missing():
    rows = [
        row(most=15, least_ratio=1, peer=Peer(name="script", value=4)),
        row(what="another thing", peer=Peer(name="terraform", note="not here")),
    ]
    lines = table(rows).splitlines()
    assert [
        line.index(word) for line, word in zip(lines, ("PEER", "script", "terraform"), strict=True)
    ] == [lines[0].index("PEER")] * 3
    assert "<= 15 s, ratio >= 1" in lines[1]
    assert lines[1].endswith("ok")
    assert "not here" in lines[2]


def test_a_document_holds_the_command_and_the_verdict():
    document = json.loads(json.dumps(row(most=1).document()))
    assert (document["command"], document["verdict"], document["peer"]) == (
        "do thing",
        "MISSED",
        None,
    )


# -- /proc --------------------------------------------------------------------------------------

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"


def test_the_cpu_of_children_counts():
    program = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}], check=True)"
    )
    done = timing.timed([sys.executable, "-c", program]).require()
    assert 0.4 <= done.cpu < 10
    assert done.wall > 0.3


def test_the_cpu_of_what_is_left_behind_counts_and_can_be_ended(tmp_path):
    flag = tmp_path / "burnt"
    child = BURN + f"open({str(flag)!r}, 'w').close()\ntime.sleep(600)"
    program = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        f"while not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
        "os._exit(0)\n"
    )
    done = timing.timed([sys.executable, "-c", program], adopt=True).require()
    assert done.cpu >= 0.38  # /proc counts in hundredths, and rounds down
    (pid,) = done.left
    assert processes.stat(pid)
    timing.end(done.left)
    assert processes.stat(pid) is None


def test_a_command_that_takes_too_long_is_ended():
    done = timing.timed(["sleep", "600"], within=0.2)
    assert done.stopped
    with pytest.raises(CannotRunError, match="was stopped"):
        done.require()


def test_a_command_that_fails_says_its_last_words():
    with pytest.raises(CannotRunError, match="ended 3\n    no such luck"):
        timing.timed(["sh", "-c", "echo no such luck >&2; exit 3"]).require()


@pytest.fixture
def family(tmp_path):
    """A process with a child that holds 50 MB, both waiting."""
    flag = tmp_path / "there"
    child = (
        f"held = b'x' * 50_000_000\nopen({str(flag)!r}, 'w').close()\nimport time\ntime.sleep(600)"
    )
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    deadline = time.monotonic() + 60
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield parent.pid
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()


def test_a_tree_holds_all_descendants(family):
    found = processes.tree([family])
    assert len(found) == 2
    assert {one.parent for one in found} == {os.getpid(), family}


def test_the_memory_of_a_tree_is_that_of_all_its_processes(family):
    pids = [one.pid for one in processes.tree([family])]
    assert processes.memory([family]) < 50_000_000 < processes.memory(pids) < 150_000_000


def test_processes_are_found_by_their_command_line(tmp_path):
    mark = f"{tmp_path}/mark"
    process = subprocess.Popen(
        ["tail", "-f", "/dev/null", "--", "/dev/null", f"--pid={os.getpid()}", mark]
    )
    try:
        deadline = time.monotonic() + 60
        while processes.named(mark) != [process.pid] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.named(mark) == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_costs_nothing():
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.stat(process.pid) is None
    assert processes.tree([process.pid]) == []
    assert processes.memory([process.pid]) == 0
    assert processes.tmpfs([process.pid]) == 0


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs in a namespace of its own")
def test_the_tmpfs_of_a_namespace_is_counted_once(tmp_path):
    script = (
        'mount -t tmpfs tmpfs "$1" && head -c 3000000 /dev/zero >"$1/file" && '
        'cat "$1/file" >/dev/null && echo ready && exec sleep 600'
    )
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            assert 3_000_000 <= processes.tmpfs([process.pid, process.pid]) < 3_200_000
        finally:
            process.kill()
    assert processes.tmpfs([os.getpid()]) == 0


def test_the_disk_a_directory_takes_is_counted(tmp_path):
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "file").open("wb") as file:
        file.write(os.urandom(1_000_000))
        file.flush()
        os.fsync(file.fileno())  # blocks are given when they are written, not before
    assert 1_000_000 <= processes.disk(tmp_path) < 1_100_000


# -- the command ----------------------------------------------------------------------------------


def test_the_computer_is_described_without_its_name():
    about = computer.describe()
    assert about["cores"] >= 1
    assert about["memory_mb"] > 100
    assert "terraform" in about["peers"]
    assert os.uname().nodename not in computer.sentence(about)


def test_only_known_benchmarks_are_run(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["machnes"])
    assert ended.value.code == 2
    assert "machines" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_a_lost_comparison_is_no_failure_and_a_bench_that_cannot_run_is(
    tmp_path, monkeypatch, capsys, fails
):
    def measure(*, quick):
        yield row(most=1)
        if fails:
            raise CannotRunError("no machines today")

    monkeypatch.setattr(command, "_measure", lambda name: measure)
    found = tmp_path / "bench.json"
    assert command.main(["start", "--quick", "--json", str(found)]) == int(fails)
    document = json.loads(found.read_text())
    assert document["figures"]["start"][0]["verdict"] == "MISSED"
    assert document["could_not_run"] == ({"start": "no machines today"} if fails else {})
    out = capsys.readouterr().out
    assert "MISSED" in out
    assert ("no machines today" in out) == fails


@in_test_all
def test_the_starting_time_is_measured_for_real(tmp_path):
    found = tmp_path / "bench.json"
    assert command.main(["start", "--quick", "--json", str(found)]) == 0
    rows = json.loads(found.read_text())["figures"]["start"]
    assert [one["unit"] for one in rows] == ["s", "ms", "s"]
    assert rows[0]["value"] > 0
    assert all(one["command"] for one in rows)


# -- the playbook ---------------------------------------------------------------------------------


def test_a_playbook_says_role_vars_where_a_template_says_vars():
    text = "{{ vars.user }} {{ my.vars.x }} {{ vars['a'] }} myvars.b"
    assert (
        playbook.renamed(text)
        == "{{ role_vars.user }} {{ my.vars.x }} {{ role_vars['a'] }} myvars.b"
    )


def machine(name, *roles):
    size = Size(cores=1, memory=64)
    return Machine(
        name=MachineName("s", name), group=name, index=1, address="127.0.0.1",
        image="i", size=size, roles=roles,
    )  # fmt: skip


def stack_of(tmp_path, *machines, **roles):
    made = {
        name: Role(name=name, path=tmp_path, digest="d", **definition)
        for name, definition in roles.items()
    }
    return Stack(
        name="s", site=Site(name="local", driver="sandbox"), network=Network(cidr="127.0.0.0/24"),
        machines=machines, images={}, roles=made,
    )  # fmt: skip


def test_roles_are_played_after_those_they_need(tmp_path):
    stack = stack_of(
        tmp_path, machine("a", "base", "worker"), machine("b", "base", "master"),
        base={}, worker={"needs": {"key": "master"}}, master={},
    )  # fmt: skip
    assert [role.name for role in playbook.ordered(stack)] == ["base", "master", "worker"]


@in_test_all
@pytest.mark.skipif(
    not Path(sys.executable).with_name("ansible-playbook").exists(), reason="ansible is not here"
)
def test_a_playbook_does_what_the_role_says(tmp_path):
    here = tmp_path / "play"
    here.mkdir()
    (tmp_path / "t.j2").write_text(
        "{% for m in members.all %}\n{{ m.name }}{% endfor %} {{ vars.v }}\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    me = {"owner": str(os.getuid())}
    stack = stack_of(
        tmp_path,
        machine("a", "r"),
        r={
            "vars": {"v": "value"},
            "members": {"all": "r"},
            "files": (
                RoleFile(to=f"{out}/template", template="t.j2", mode=0o600, **me),
                RoleFile(to=f"{out}/content", content="{{ machine.address }}", **me),
            ),
            "run": (
                RoleStep(name="not due", unless="true", do=f"touch {out}/wrong"),
                RoleStep(
                    name="due",
                    unless="false",
                    do=f'printf "%s {{{{ no template }}}}" "$WORD" >{out}/ran',
                    env={"WORD": "{{ vars.v }}"},
                ),
            ),
        },
    )
    words, environ = playbook.write(here, stack, {"a": []}, os.environ)
    program = Path(sys.executable).with_name("ansible-playbook")
    local = ["-c", "local", "-e", f"ansible_python_interpreter={shutil.which('python3')}"]
    timing.timed([program, *words, *local], environ=environ, cwd=here, within=200).require()
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "template": "\na value\n",
        "content": "127.0.0.1",
        "ran": "value {{ no template }}",
    }
    assert (out / "template").stat().st_mode & 0o777 == 0o600
