"""A comparison: what its variants are called, in what order they run, what its folder keeps."""

from __future__ import annotations

import dataclasses
import json
import threading
from types import SimpleNamespace

import pytest

from essaim.config.workloads import Scheduler, Workload
from essaim.model.errors import EssaimError, HeldError, InvalidError, RejectedError, SetupError
from essaim.model.names import NAME, MachineName
from essaim.model.stacks import Machine, Network, Site, Size, Stack
from essaim.usecases import comparing
from essaim.usecases.comparing import Wanted
from essaim.usecases.comparing_files import Asked, Folder
from essaim.usecases.comparing_jobs import check
from essaim.usecases.comparing_variants import label, slug

SCHEDULER = Scheduler(
    name="mine",
    summary="Mine",
    controller="head",
    node="hand",
    version="true",
    prepare="",
    array="true",
    one="true",
    after="true",
    left="echo 0",
    cancel="true",
)
WORKLOAD = Workload(
    name="short",
    summary="",
    jobs=2,
    cores=1,
    seconds=0.0,
    submit="array",
    command="true",
    user="student",
    within=60.0,
)


def asked(*labels: str, **changes) -> Asked:
    variants = tuple(
        {"key": f"{n}-{each}", "label": each, "overrides": [f"scheduler={each}"], "digest": "d"}
        for n, each in enumerate(labels, start=1)
    )
    its = Asked(where="bench", workload="w", side_by_side=False, reuse=False, variants=variants)
    return dataclasses.replace(its, **changes)


@pytest.mark.parametrize(
    ("combinations", "expected"),
    [
        ([("scheduler=slurm", "nodes=4"), ("scheduler=oar", "nodes=4")], ["slurm", "oar"]),
        ([("nodes=2",), ("nodes=4",)], ["nodes=2", "nodes=4"]),
        (
            [("scheduler=slurm", "workload.jobs=1"), ("scheduler=oar", "workload.jobs=9")],
            ["slurm jobs=1", "oar jobs=9"],
        ),
        ([("+deep=true",), ("+deep=false",)], ["deep=true", "deep=false"]),
        ([("nodes=2",)], [""]),
        ([()], [""]),
    ],
)
def test_a_variant_is_named_by_what_it_alone_has(combinations, expected):
    assert label(combinations) == expected


@pytest.mark.parametrize("text", ["slurm nodes=2", "A=[x,y] " * 9, "é", "9", "nodes=2"])
def test_whatever_a_variant_is_called_its_stack_has_a_name(text):
    name = f"cmp-{f'12-{slug(text)}'.rstrip('-')}-abcdef"
    assert NAME.fullmatch(name)


# -- the folder ---------------------------------------------------------------------------------


def test_what_is_finished_stays_finished_and_what_stands_is_known(tmp_path):
    with Folder(tmp_path / "out").opened() as folder:
        folder.begin(asked("slurm", "oar"))
        first = folder.id
        folder.stands("cmp-2")
        folder.stands("cmp-1")
        folder.finish("2-oar", 1, {"variant": "2-oar", "repetition": 1})
        folder.finish("1-slurm", 1, {"variant": "1-slurm", "repetition": 1})
        folder.gone("cmp-2")
    with Folder(tmp_path / "out").opened() as folder:
        folder.begin(asked("slurm", "oar"))
        assert folder.id == first
        assert folder.standing == ["cmp-1"]
        assert folder.has("1-slurm", 1)
        assert not folder.has("1-slurm", 2)
        assert [each["variant"] for each in folder.results()] == ["1-slurm", "2-oar"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (asked("slurm", "oar"), "it was of slurm and is of slurm, oar"),
        (asked("slurm", where="other"), "where was bench and is other"),
        (asked("slurm", reuse=True), "reuse was False and is True"),
        (
            asked("slurm", variants=({**asked("slurm").variants[0], "digest": "e"},)),
            "the configuration of slurm has changed since",
        ),
    ],
)
def test_a_folder_with_another_comparison_is_left_alone_unless_begun_anew(tmp_path, other, said):
    with Folder(tmp_path).opened() as folder:
        folder.begin(asked("slurm"))
        folder.stands("cmp-1")
        folder.finish("1-slurm", 1, {"variant": "1-slurm", "repetition": 1})
        with pytest.raises(InvalidError, match=said) as caught:
            folder.begin(other)
        assert "--anew" in caught.value.problems[0].hint
        assert folder.has("1-slurm", 1)
        folder.begin(other, anew=True)
        assert not folder.has("1-slurm", 1)
        assert folder.standing == ["cmp-1"]  # it has to be taken down all the same
        assert not list((tmp_path / "runs").iterdir())


def test_only_one_works_in_a_folder(tmp_path):
    with (
        Folder(tmp_path).opened(),
        pytest.raises(HeldError, match="at work"),
        Folder(tmp_path).opened(),
    ):
        pass


def test_a_folder_that_cannot_be_used_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be written"), Folder(tmp_path / "file").opened():
        pass
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(SetupError, match="cannot be read"), Folder(tmp_path).opened():
        pass
    (tmp_path / "state.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(SetupError, match="another version"), Folder(tmp_path).opened():
        pass


# -- what is refused before anything is raised --------------------------------------------------


def stack(*, cores: int = 1, role: str = "hand") -> Stack:
    machine = Machine(
        name=MachineName("s", "one"),
        group="one",
        index=1,
        address="10.0.0.10",
        image="base",
        size=Size(cores=cores, memory=64),
        roles=("head", role),
    )
    return Stack(
        name="s",
        site=Site(name="local", driver="sandbox"),
        network=Network(cidr="10.0.0.0/24"),
        machines=(machine,),
        images={},
        roles={},
        source="bench",
    )


@pytest.mark.parametrize(
    ("its", "workload", "said"),
    [
        (stack(role="other"), {}, "no machine carries the role hand"),
        (stack(cores=2), {"cores": 4}, "wants 4 cores, and no node has more than 2"),
        (stack(), {"user": ""}, "nobody is named who submits"),
    ],
)
def test_what_could_never_run_is_refused(its, workload, said):
    with pytest.raises(InvalidError, match=said):
        check(its, SCHEDULER, dataclasses.replace(WORKLOAD, **workload))


# -- in what order, and what happens when something fails ----------------------------------------


class Rig:
    """`compare` with machines that cost nothing; raising and measuring may be made to fail."""

    def __init__(self, monkeypatch, tmp_path, variants=("slurm", "oar")) -> None:
        self.did: list[str] = []
        self.fails: dict[str, EssaimError] = {}
        self.halt = threading.Event()
        self.cores = 1  #: of the machine, as the files say now
        self.out = tmp_path / "out"
        self.variants = [
            SimpleNamespace(
                key=f"{n}-{name}",
                label=name,
                overrides=(f"scheduler={name}",),
                composed=SimpleNamespace(stack=stack()),
                workload=WORKLOAD,
                scheduler=SCHEDULER,
                digest="d",
            )
            for n, name in enumerate(variants, start=1)
        ]
        self.images = SimpleNamespace(list=list)
        monkeypatch.setattr(comparing, "variants_of", lambda *_given: self.variants)
        monkeypatch.setattr(comparing, "compose", self.compose)
        monkeypatch.setattr(comparing, "make_plan", lambda _services, composed: composed.stack)
        monkeypatch.setattr(comparing, "_carry_out", self.carry_out)
        monkeypatch.setattr(comparing, "take_down", self.take_down)
        monkeypatch.setattr(comparing.jobs, "run", self.run)
        monkeypatch.setattr(comparing.jobs, "version", lambda _bench: "1.0")
        monkeypatch.setattr(comparing, "write_report", lambda *_given, **_named: [])

    def driver(self, _site):
        return SimpleNamespace(form="rootfs")

    def compose(self, _where, overrides):
        name = overrides[-1].partition("name=")[2]
        its = stack(cores=self.cores)
        return SimpleNamespace(stack=dataclasses.replace(its, name=name) if name else its)

    def carry_out(self, _services, name, plan):
        plan()
        self._do("up", name)

    def take_down(self, _services, name):
        self._do("down", name)

    def run(self, bench):
        from essaim.plan.comparing import Execution, Submission, Trial

        self._do("run", bench.stack.name)
        submission = Submission(first=1, last=2, began=0, ended=1, exit_code=0)
        ran = [Execution(job=n, machine="s/one", began=5, ended=9, exit_code=0) for n in (1, 2)]
        return Trial(
            jobs=2,
            cores=1,
            slots=1,
            controller="s/one",
            submissions=[submission],
            executions=ran,
            clocks=[],
        )

    def _do(self, verb: str, name: str) -> None:
        word = f"{verb} {name.split('-')[2]}"
        self.did.append(word)
        if error := self.fails.get(word):
            raise error

    def compare(self, **options):
        wanted = Wanted(where="bench", overrides=(), workload="w", **options)
        self.did.clear()
        self.asked = []  # names of kept stacks, before they go
        return comparing.compare(
            self,
            wanted,
            self.out,
            tell=lambda _text: None,
            halt=self.halt,
            agree=lambda names: self.asked.extend(name.split("-")[2] for name in names),
        )


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


ONE, OTHER = ["up slurm", "run slurm", "down slurm"], ["up oar", "run oar", "down oar"]


def test_variants_take_turns_and_each_repetition_is_raised_anew(rig):
    ended = rig.compare(repeat=2)
    assert rig.did == [*ONE, *OTHER, *ONE, *OTHER]
    assert [(r["label"], r["repetition"]) for r in ended.results] == [
        ("slurm", 1), ("slurm", 2), ("oar", 1), ("oar", 2),
    ]  # fmt: skip
    assert (ended.failures, ended.standing, ended.stopped) == ([], [], False)


def test_a_variant_can_be_raised_once_for_all_its_repetitions(rig):
    ended = rig.compare(repeat=2, reuse=True)
    assert rig.did == ["up slurm", "run slurm", "run slurm", "down slurm",
                       "up oar", "run oar", "run oar", "down oar"]  # fmt: skip
    assert [r["measures"]["raise_seconds"] is None for r in ended.results] == [False, True] * 2


def test_more_repetitions_are_added_to_those_there_are(rig):
    rig.compare()
    ended = rig.compare(repeat=2)
    assert rig.did == [*ONE, *OTHER]
    assert len(ended.results) == 4
    rig.compare(repeat=2)
    assert rig.did == []


def test_a_variant_that_cannot_be_raised_is_taken_down_told_of_and_tried_again(rig):
    rig.fails["up slurm"] = RejectedError("no room", hint="make some")
    ended = rig.compare()
    assert rig.did == ["up slurm", "down slurm", *OTHER]
    assert ended.failures == ["slurm, repetition 1: no room (make some)"]
    assert [r["label"] for r in ended.results] == ["oar"]
    rig.fails.clear()
    assert len(rig.compare().results) == 2
    assert rig.did == ONE


def test_a_failed_repetition_of_a_reused_variant_leaves_nothing_standing(rig):
    rig.fails["run slurm"] = RejectedError("took none")
    rig.compare(repeat=2, reuse=True)
    assert rig.did[:4] == ["up slurm", "run slurm", "down slurm", "up slurm"]
    rig.fails.clear()
    ended = rig.compare(repeat=2, reuse=True)
    assert rig.did == ["up slurm", "run slurm", "run slurm", "down slurm"]
    assert ended.standing == []


def test_files_that_are_changed_meanwhile_are_not_mixed_with_those_before(rig, monkeypatch):
    def run(bench):
        rig.cores = 2
        return Rig.run(rig, bench)

    monkeypatch.setattr(comparing.jobs, "run", run)
    ended = rig.compare()
    assert [r["label"] for r in ended.results] == ["slurm"]
    assert "was changed meanwhile" in ended.failures[0]
    assert ended.standing == []


def test_what_cannot_be_taken_down_is_known_and_tried_again_first(rig):
    rig.fails["down slurm"] = RejectedError("does not answer")
    ended = rig.compare()
    assert [name.split("-")[2] for name in ended.standing] == ["slurm"]
    assert "could not be taken down" in ended.failures[0]
    assert len(ended.results) == 2
    rig.fails.clear()
    assert rig.compare().standing == []
    assert rig.did == ["down slurm"]


def test_what_is_kept_stands_until_it_is_in_the_way(rig):
    ended = rig.compare(keep=True, repeat=2)
    assert rig.did == [*ONE, *OTHER, *ONE[:2], *OTHER[:2]]
    assert len(ended.standing) == 2
    assert len(rig.compare(keep=True, repeat=2).standing) == 2
    assert (rig.did, rig.asked) == ([], [])
    assert rig.compare(repeat=2).standing == []
    assert rig.did == ["down slurm", "down oar"]
    assert rig.asked == ["slurm", "oar"]
    rig.compare(repeat=2)
    assert rig.asked == []


def test_when_asked_to_stop_it_takes_down_what_stands_and_goes_on_later(rig, monkeypatch):
    def stop(bench):
        rig.halt.set()
        raise comparing.jobs.StoppedError("stopped")

    monkeypatch.setattr(comparing.jobs, "run", stop)
    ended = rig.compare(repeat=2, reuse=True)
    assert ended.stopped
    assert rig.did == ["up slurm", "down slurm"]
    monkeypatch.setattr(comparing.jobs, "run", rig.run)
    rig.halt.clear()
    assert len(rig.compare(repeat=2, reuse=True).results) == 4


def test_side_by_side_all_are_up_before_any_is_down(rig, monkeypatch):
    together = threading.Barrier(2, timeout=60)

    def run(bench):
        together.wait()  # breaks unless both are here at the same time
        return Rig.run(rig, bench)

    monkeypatch.setattr(comparing.jobs, "run", run)
    ended = rig.compare(side_by_side=True, repeat=2)
    assert not ended.failures
    assert len(ended.results) == 4
