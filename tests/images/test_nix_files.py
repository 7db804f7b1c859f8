"""The flake that comes with Essaim parses everywhere, is pinned, and holds nobody's identity."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from essaim.config.images import image_names, read_image
from essaim.config.tree import Tree
from essaim.images import nix
from essaim.images.nix_parse import faults_of, files_of, line_of, parse
from essaim.model.errors import InvalidError, RejectedError
from essaim.model.stacks import Image

LIBRARY = Path(nix.__file__).parents[1] / "library"
FLAKE = LIBRARY / "nix"
ROLES = (
    "generic",
    "slurm-controller",
    "slurm-node",
    "k3s-server",
    "k3s-agent",
    "oar-server",
    "oar-node",
)


@pytest.fixture
def no_nix(monkeypatch, tmp_path):
    """A computer without Nix."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("essaim.images.inside._SYSTEM", str(tmp_path))


def image(**settings: str) -> Image:
    return Image(name="nixos", builder="nix", digest="d", settings={"path": str(FLAKE), **settings})


def test_every_file_parses(no_nix):
    files = {str(path.relative_to(FLAKE)) for path in parse(FLAKE)}
    assert {"flake.nix", "default.nix", "modules/generic.nix"} <= files
    assert {f"roles/{role}.nix" for role in ROLES[1:]} <= files


def test_the_folder_at_the_root_is_the_same_flake():
    assert (Path(__file__).parents[2] / "nix").resolve() == FLAKE


def test_inputs_are_pinned():
    lock = json.loads((FLAKE / "flake.lock").read_bytes())
    pins = [node["locked"] for name, node in lock["nodes"].items() if name != lock["root"]]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[0-9a-f]{40}", pin["rev"])
        assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", pin["narHash"])
    wanted = set(re.findall(r"inputs\.(\w+)\.url", (FLAKE / "flake.nix").read_text()))
    assert wanted == set(lock["nodes"][lock["root"]]["inputs"])


def test_there_is_an_image_for_each_role(tmp_path):
    tree = Tree.of_lab(tmp_path)
    made = {}
    for name in image_names(tree):
        if name.startswith("nixos"):
            found = read_image(tree, name)
            made[name] = nix.recipe(found)
    assert {recipe.role for recipe in made.values()} == set(ROLES)
    assert made["nixos-slurm-node"].attribute == "packages.x86_64-linux.slurm-node-image"
    assert all(recipe.flake == FLAKE for recipe in made.values())


def test_a_changed_module_is_another_image(tmp_path):
    (tmp_path / "images").mkdir()
    shutil.copy(LIBRARY / "images/nixos.yaml", tmp_path / "images/nixos.yaml")
    shutil.copytree(FLAKE, tmp_path / "nix")
    (tmp_path / "essaim.yaml").write_text("")
    before = read_image(Tree.of_lab(tmp_path), "nixos")
    with (tmp_path / "nix/modules/generic.nix").open("a") as file:
        file.write("# changed\n")
    after = read_image(Tree.of_lab(tmp_path), "nixos")
    assert before.digest != after.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{ a = 1; b = ; }\n", "1:13: a value is missing after `=`"),
        ("{\n  a = true\n  b = 1;\n}\n", "3:5: `=` is not expected here"),
        ('{ a = "é"; b = [ 1 2 ; }\n', "1:21: `]` is missing after `2`"),
        ("{ a, , }: a\n", "1:4: `, ,` is not expected here"),
        ("{ , }: 1\n", "1:3: `,` is not expected here"),
        ("\n", "1:1: the file is empty"),
    ],
)
def test_a_wrong_file_is_reported_with_its_place(tmp_path, no_nix, text, said):
    (tmp_path / "flake.nix").write_text(text)
    with pytest.raises(InvalidError) as caught:
        parse(tmp_path)
    assert str(caught.value).splitlines()[0] == f"{tmp_path}/flake.nix:{said}"


@pytest.mark.parametrize(
    "text", ["{ a, b, }: a", "{ a,\n  b ? 1,\n  # why\n}:\na", "args@{ a, }: a", "{ a, ... }: a"]
)
def test_what_nix_allows_and_the_grammar_does_not_know_is_no_fault(tmp_path, text):
    file = tmp_path / "x.nix"
    file.write_text(text)
    assert faults_of(file) == []


def test_the_line_of_an_option_is_found_however_it_is_written(tmp_path):
    file = tmp_path / "x.nix"
    file.write_text(
        "{ lib, ... }:\n{\n  config = lib.mkIf true {\n    services.openssh = {\n"
        '      enable = true;\n    };\n    services.k3s.enable = true;\n    a."b".c = 1;\n  };\n}\n'
    )
    assert line_of(file, "services.openssh.enable") == 5
    assert line_of(file, "services.k3s.enable") == 7
    assert line_of(file, "a.b.c") == 8
    assert line_of(file, "services.nothing") is None
    assert line_of(tmp_path / "absent", "a") is None


def test_no_file_holds_a_name_an_address_or_a_key():
    for path in files_of(FLAKE):
        code = "\n".join(line.partition("#")[0] for line in path.read_text().splitlines())
        assert not re.search(r"\b\d+\.\d+\.\d+\.\d+\b", code), path
        assert not re.search(r"ssh-(ed25519|rsa) |BEGIN [A-Z ]*PRIVATE KEY|[pP]assword *=", code)
        assert re.findall(r"hostName = (.+);", code) in ([], ['""'])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rolle": "generic"}, "there is no setting rolle"),
        ({}, "give either a role or an attribute"),
        ({"role": "generic", "attribute": "x"}, "give either a role or an attribute"),
        ({"role": "a b"}, "give either a role or an attribute"),
        ({"role": "generic", "path": "/nowhere"}, "path /nowhere is not a folder with a flake.nix"),
        ({"role": "generic", "host": "builder"}, "host 'builder' is not understood"),
        ({"role": "generic", "host": "ssh://me@b:2222"}, "host_key must hold the host key of b"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(RejectedError, match=re.escape(said)):
        nix.recipe(image(**settings))


def test_a_flake_without_a_lock_is_refused(tmp_path):
    (tmp_path / "flake.nix").write_text("{ outputs = _: { }; }")
    with pytest.raises(RejectedError, match=r"has no flake\.lock"):
        nix.recipe(image(role="generic", path=str(tmp_path)))
