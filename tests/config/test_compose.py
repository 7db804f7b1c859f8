"""Composition of one stack, and of the examples that come with Essaim."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from essaim.config.compose import compose
from essaim.config.serial import fingerprint
from essaim.model.errors import InvalidError
from essaim.model.stacks import Size

ROOT = Path(__file__).parents[2]


def names(composed):
    return [machine.name.machine for machine in composed.stack.machines]


def test_one_description_holds_the_whole_cluster(lab):  # R-A1
    stack = lab.compose().stack
    assert stack.name == "slurm"
    assert stack.site.name == "local"
    assert stack.site.driver == "sandbox"
    assert stack.network.cidr == "10.77.0.0/24"
    assert [str(m.name) for m in stack.machines] == [
        "slurm/controller",
        *(f"slurm/nodes-{n}" for n in range(1, 5)),
    ]
    assert [m.address for m in stack.machines] == [f"10.77.0.{n}" for n in range(10, 15)]
    assert stack.machines[0].roles == ("head",)
    assert stack.machines[1].roles == ("worker",)
    assert stack.machines[4].index == 4
    assert stack.machines[1].size == Size(cores=1, memory=1024, disk=0)
    assert set(stack.images) == {"tiny"}
    assert set(stack.roles) == {"head", "worker"}
    assert stack.source.endswith("cluster")


def test_overrides_choose_options_and_set_values(lab):  # R-A1, R-A5
    composed = lab.compose("scheduler=gridengine", "nodes=2", "size=large", "+site.colour=red")
    assert composed.stack.name == "gridengine"
    assert names(composed) == ["controller", "nodes-1", "nodes-2"]
    assert composed.stack.machines[0].size == Size(cores=8, memory=16384, disk=80)
    assert composed.stack.site.settings == {"colour": "red"}
    assert composed.values["nodes"] == 2
    assert composed.stack.overrides[0] == "scheduler=gridengine"


def test_a_key_can_be_taken_away(lab):
    assert names(lab.compose("~topology.controller", "topology.nodes.roles=[]", "nodes=1")) == [
        "nodes-1"
    ]


def test_a_value_of_ones_own_may_go_unused_when_overridden(lab):
    assert len(lab.compose("topology.nodes.count=1").stack.machines) == 2


def test_a_count_of_zero_is_no_machine(lab):
    assert names(lab.compose("nodes=0")) == ["controller"]


def test_a_stack_may_be_any_yaml_file(lab):
    lab.write("cluster/other.yaml", "name: other\nimage: tiny\ntopology: {one: }\n")
    assert names(lab.compose(where="cluster/other.yaml")) == ["one"]


def test_without_a_global_file_the_lab_is_the_stacks_directory(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "tiny.yaml").write_text("builder: debian\n")
    (tmp_path / "stack.yaml").write_text("name: s\nimage: tiny\ntopology: {m: {count: 2}}\n")
    composed = compose(str(tmp_path))
    assert composed.lab == tmp_path
    assert composed.stack.network.cidr == "10.77.0.0/24"
    assert names(composed) == ["m-1", "m-2"]


def test_groups_are_found_near_the_stack_first(lab):
    lab.write("size/small.yaml", "cores: 3\nmemory: 300\n")
    assert lab.compose().stack.machines[0].size == Size(cores=3, memory=300)
    lab.write("cluster/size/small.yaml", "cores: 4\nmemory: 4G\ndisk: 1T\n")
    assert lab.compose().stack.machines[0].size == Size(cores=4, memory=4096, disk=1024)


def test_a_group_of_machines_may_have_its_own_size_image_labels_and_order(lab):
    lab.write(
        "cluster/stack.yaml",
        """\
        name: s
        image: tiny
        topology:
          a: {size: large, labels: {room: 12}, after: [b]}
          b: {count: 2, size: {cores: 2, memory: 512M}, image: other, address: 10.1.0.200}
        """,
    )
    a, b1, b2 = lab.compose().stack.machines
    assert a.size.cores == 8
    assert a.labels == {"room": "12"}
    assert a.after == ("b",)
    assert (b1.size, b1.image) == (Size(cores=2, memory=512), "other")
    assert (b1.address, b2.address) == ("10.1.0.200", "10.1.0.201")


def test_lists_given_by_interpolations_are_unfolded(lab):
    lab.write(
        "cluster/scheduler/slurm.yaml", "name: x\nroles: {controller: [head, worker], node: []}"
    )
    machines = lab.compose("nodes=1").stack.machines
    assert machines[0].roles == ("head", "worker")
    assert machines[1].roles == ()


def test_package_directives_put_values_where_they_say(lab):
    lab.write(
        "cluster/extra/wide.yaml", "# @package _global_\nnodes: 7\nnetwork: {cidr: 10.9.0.0/24}"
    )
    lab.write(
        "cluster/stack.yaml",
        (lab.root / "cluster/stack.yaml").read_text().replace("_self_", "_self_, {extra: wide}"),
    )
    composed = lab.compose()
    assert composed.values["nodes"] == 7
    place = composed.provenance.explain("nodes")[0].place
    assert str(place) == "cluster/extra/wide.yaml:2"


def test_ten_thousand_machines_take_no_time(lab):
    compose(str(lab.root / "cluster"))  # imports are not what is measured
    start = time.process_time()
    composed = lab.compose("nodes=9999", "network.cidr=10.64.0.0/16")
    assert time.process_time() - start < 2  # a tenth of that on an idle computer
    assert len(composed.stack.machines) == 10_000
    assert len({machine.address for machine in composed.stack.machines}) == 10_000


def test_threads_compose_side_by_side_and_leave_hydra_alone(lab):
    found, failed = {}, []

    def work(count):
        try:
            found[count] = len(lab.compose(f"nodes={count}").stack.machines)
        except Exception as exc:  # noqa: BLE001 - shown by the assertion below
            failed.append(exc)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert found == {n: n + 1 for n in range(6)}
    assert not GlobalHydra.instance().is_initialized()


def test_a_failed_composition_cleans_up(lab):
    lab.problems("scheduler=none")
    assert not GlobalHydra.instance().is_initialized()
    assert lab.compose().stack.name == "slurm"


def test_the_same_files_give_the_same_stack(lab):  # R-A6
    assert lab.compose().stack == lab.compose().stack
    assert fingerprint(lab.compose().stack) != fingerprint(lab.compose("nodes=5").stack)


def test_importing_the_package_is_cheap():
    code = "import sys, essaim.config, essaim.config.secrets, essaim.config.serial; "
    code += "sys.exit(any(m in sys.modules for m in ('hydra', 'pydantic', 'jinja2', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("scheduler", ["slurm", "gridengine", "oar"])
def test_the_example_raises_one_topology_with_each_scheduler(scheduler, monkeypatch):  # R-A5
    monkeypatch.chdir(ROOT)
    composed = compose("examples/slurm", [f"scheduler={scheduler}"])
    assert composed.stack.name == scheduler
    assert names(composed) == ["controller", "nodes-1", "nodes-2", "nodes-3", "nodes-4"]
    assert composed.lab == ROOT


def test_the_bare_example_has_machines_without_roles():
    stack = compose(str(ROOT / "examples/bare"), ["nodes=300"]).stack
    assert len(stack.machines) == 300
    assert stack.roles == {}


def test_explain_shows_what_the_command_line_overrode(monkeypatch):
    monkeypatch.chdir(ROOT)
    provenance = compose("examples/slurm", ["nodes=8"]).provenance
    count, now, before = provenance.explain("topology.nodes.count")
    assert (count.value, str(count.place)) == ("${nodes}", "examples/slurm/stack.yaml:18")
    assert (now.key, now.value, now.level, now.wins) == ("nodes", 8, "command line", True)
    assert (before.value, before.wins) == (4, False)
    assert str(before.place) == "examples/slurm/stack.yaml:14"


def test_problems_come_all_at_once(lab):
    lab.write(
        "cluster/stack.yaml",
        "name: s\nimage: nope\ntopology: {m: {roles: [heed], after: [n]}}\nnetwork: {cidr: x}\n",
    )
    with pytest.raises(InvalidError) as caught:
        lab.compose()
    assert len(caught.value.problems) == 4


def test_somebody_elses_hydra_is_left_as_it_was(lab, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "main.yaml").write_text("theirs: 1\n")
    with initialize_config_dir(str(tmp_path / "theirs"), version_base="1.3"):
        assert lab.compose().stack.name == "slurm"
        assert hydra_compose("main") == {"theirs": 1}


def test_hints_are_filled_in_and_do_not_make_it_another_stack(lab):
    plain = lab.compose().stack
    file = lab.root / "cluster/stack.yaml"
    lab.write("cluster/stack.yaml", file.read_text() + 'hints: ["essaim ssh ${name}/controller"]\n')
    hinted = lab.compose().stack
    assert plain.hints == ()
    assert hinted.hints == ("essaim ssh slurm/controller",)
    assert fingerprint(hinted) == fingerprint(plain)
