"""What Nix printed in real failures, and what we make of it."""

from __future__ import annotations

import pytest

from essaim.images.nix_errors import explain, warnings_of
from essaim.model.errors import InvalidError, RejectedError, SetupError

TRACE = "(use '--show-trace' to show detailed location information)"

NO_OPTION = f"""\
error: The option `services.openssh.enablee' does not exist. Definition values:
       - In `FILE': true
{TRACE}"""
BAD_TYPE = f"""\
error: A definition for option `services.openssh.enablee' is not of type `boolean'. \
Definition values:
       - In `FILE': "yes"
{TRACE}"""
ASSERTION = f"""\
error:
       Failed assertions:
       - k3s: clusterInit must be false if role is 'agent'
{TRACE}"""
MISSING = f"""\
error: attribute 'mungee' missing

       at /flake/roles/slurm.nix:10:5:

            9|     pkgs.slurm
           10|     pkgs.mungee
             |     ^
           11|   ];
       Did you mean munge?
{TRACE}"""
SYNTAX = f"""\
error: syntax error, unexpected '=', expecting ';'

       at /flake/modules/seed.nix:5:20:

            4|     enable = true
            5|     network.enable = true
             |                    ^
            6|     settings = {{
{TRACE}"""
NO_NETWORK = (
    "warning: the group 'nixbld' specified in 'build-users-group' does not exist\n"
    "error: unable to download 'https://api.github.com/repos/NixOS/nixpkgs/tarball/6faeb062':"
    " Couldn't resolve host name (6)\n" + TRACE
)
NO_STORE = "error: the group 'nixbld' specified in 'build-users-group' does not exist"
NO_KVM = """\
error: a 'x86_64-linux' with features {kvm} is required to build \
'/store/27f3py0gvj4gf65hvrm3iiw0f7wdhkxq-small.drv', but I am a 'x86_64-linux' with features \
{benchmark}"""
SMALL = "packages.x86_64-linux.smalll-image"
NO_ATTRIBUTE = """\
error: flake 'path:/flake' does not provide attribute \
'packages.x86_64-linux.packages.x86_64-linux.smalll-image.drvPath', \
'legacyPackages.x86_64-linux.packages.x86_64-linux.smalll-image.drvPath' or \
'packages.x86_64-linux.smalll-image.drvPath'
       Did you mean small-image?"""


def nobody(_option: str) -> list[str]:
    return []


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "generic.nix"
    path.write_text("{\n  # enablee\n  services.openssh = {\n    enablee = true;\n  };\n}\n")
    return path


def test_a_misspelt_option_is_reported_with_file_line_and_near_spelling(file):
    asked = []

    def near(option: str) -> list[str]:
        asked.append(option)
        return ["enable", "ports", "settings"]

    error = explain("nixos", NO_OPTION.replace("FILE", str(file)), near)
    assert isinstance(error, InvalidError)
    assert error.what == (
        f"{file}:4: there is no option services.openssh.enablee (did you mean enable?)"
    )
    assert asked == ["services.openssh.enablee"]


def test_a_file_whose_line_is_not_found_is_still_named():
    error = explain("nixos", NO_OPTION.replace("FILE", "/elsewhere/x.nix"), nobody)
    assert error.what == "/elsewhere/x.nix: there is no option services.openssh.enablee"


def test_a_value_of_the_wrong_type_is_reported_with_its_place(file):
    error = explain("nixos", BAD_TYPE.replace("FILE", str(file)), nobody)
    assert isinstance(error, InvalidError)
    assert error.what == f'{file}:4: option services.openssh.enablee must be a boolean, not "yes"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ASSERTION, "k3s: clusterInit must be false if role is 'agent'"),
        (MISSING, "/flake/roles/slurm.nix:10: there is no attribute mungee (did you mean munge?)"),
        (SYNTAX, "/flake/modules/seed.nix:5: syntax error, unexpected '=', expecting ';'"),
        (NO_ATTRIBUTE, f"the flake has no attribute {SMALL} (did you mean small-image?)"),
    ],
)
def test_what_the_author_did_wrong_is_said_in_our_words(text, said):
    error = explain("nixos", text, nobody)
    assert isinstance(error, InvalidError)
    assert error.what == said


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        (NO_NETWORK, "what it is made from cannot be fetched", "ESSAIM_NIXPKGS"),
        (NO_STORE, "nix has no store it may write to", "host"),
        (NO_KVM, "this store may not use KVM", "/dev/kvm"),
        ("error: writing to file: No space left on device", "the disk is full", "free some space"),
    ],
)
def test_what_the_computer_lacks_is_told_apart(text, said, hint):
    error = explain("nixos", text, nobody)
    assert isinstance(error, SetupError)
    assert said in error.what
    assert hint in error.hint
    assert "show-trace" not in error.what
    assert "warning" not in error.what


def test_a_warning_about_the_computer_does_not_hide_the_authors_mistake(file):
    text = f"warning: {NO_STORE.removeprefix('error: ')}\n" + NO_OPTION.replace("FILE", str(file))
    assert isinstance(explain("nixos", text, nobody), InvalidError)


def test_anything_else_is_given_in_nixs_own_words():
    error = explain("nixos", f"error: infinite recursion encountered\n{TRACE}", nobody)
    assert isinstance(error, RejectedError)
    assert error.what == "image nixos: nix refuses it:\nerror: infinite recursion encountered"


def test_warnings_of_old_and_new_versions_are_heard():
    text = "trace: evaluation warning: no OAR\ntrace: \x1b[1;31mwarning: old\x1b[0m\nerror: x"
    assert warnings_of(text) == ["no OAR", "old"]
