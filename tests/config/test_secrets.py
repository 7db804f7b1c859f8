"""Secrets: named everywhere, known nowhere."""

from __future__ import annotations

import json
import pickle

import pytest

from essaim.config.secrets import SecretRef, resolve_secret
from essaim.config.serial import stack_from_json, stack_to_json
from essaim.config.show import to_yaml
from essaim.model.errors import SetupError, UnknownError

STACK = """\
name: s
image: tiny
password: !secret lab/pass-word
topology: {m: {roles: [head]}}
vars:
  head:
    key: %s
"""


@pytest.fixture
def stored(lab):
    """A lab whose `secrets/` holds one."""
    lab.write("secrets/lab/pass-word", "hunter2\n").chmod(0o600)
    return lab


@pytest.mark.parametrize(
    "written", ["!secret lab/pass-word", "${secret:lab/pass-word}", "${password}"]
)
def test_a_stack_holds_the_name_only(stored, written):
    stored.write(
        "cluster/stack.yaml", (STACK % written).replace("image", "note: ${password}\nimage")
    )
    text = (stored.root / "cluster/stack.yaml").read_text().replace("note: ${password}\n", "")
    if written != "${password}":
        text = text.replace("password: !secret lab/pass-word\n", "")
    stored.write("cluster/stack.yaml", text)
    composed = stored.compose()
    ref = composed.stack.vars["head"]["key"]
    assert isinstance(ref, SecretRef)
    assert ref.name == "lab/pass-word"
    assert "key: !secret 'lab/pass-word'" in to_yaml(composed.values)
    everything = (
        repr(composed) + json.dumps(stack_to_json(composed.stack)) + to_yaml(composed.values)
    )
    assert "hunter2" not in everything
    again = stack_from_json(json.loads(json.dumps(stack_to_json(composed.stack))))
    assert again == composed.stack
    assert isinstance(again.vars["head"]["key"], SecretRef)
    assert resolve_secret(ref.name, composed.lab) == "hunter2"


def test_a_missing_secret_is_found_early(lab):
    lab.write(
        "cluster/stack.yaml",
        (STACK % "!secret nope").replace("password: !secret lab/pass-word\n", ""),
    )
    (problem,) = lab.problems()
    assert problem.startswith(
        "cluster/stack.yaml:6: there is no secret nope (set ESSAIM_SECRET_NOPE, "
    )


def test_the_environment_comes_first(stored, monkeypatch):
    monkeypatch.setenv("ESSAIM_SECRET_LAB_PASS_WORD", "from-env")
    assert resolve_secret("lab/pass-word", stored.root) == "from-env"


def test_a_file_others_may_read_is_refused(stored):
    file = stored.root / "secrets/lab/pass-word"
    file.chmod(0o640)
    with pytest.raises(SetupError) as caught:
        resolve_secret("lab/pass-word", stored.root)
    assert caught.value.hint == f"chmod 600 {file}"
    assert caught.value.exit_code == 3
    stored.write("cluster/stack.yaml", (STACK % "${password}"))
    with pytest.raises(SetupError):
        stored.compose()


@pytest.mark.parametrize(
    "name", ["../essaim.yaml", "/etc/passwd", "", "a//b", "lab/../x", ".hidden"]
)
def test_a_name_cannot_climb_out(stored, name):
    with pytest.raises(UnknownError):
        resolve_secret(name, stored.root)


@pytest.mark.parametrize("name", ["lab", "lab/pass-word/x"])
def test_what_is_not_a_file_is_no_secret(stored, name):
    with pytest.raises(UnknownError):
        resolve_secret(name, stored.root)


def test_a_secret_must_be_the_whole_value(stored):
    stored.write("cluster/stack.yaml", STACK % "'x-${password}'")
    assert stored.problems() == [
        (
            "cluster/stack.yaml:7: vars.head.key: a secret must be the whole value "
            "(let a role's template put the text around it)"
        )
    ]


def test_a_secret_may_not_be_shown(stored):
    stored.write(
        "cluster/stack.yaml",
        "name: s\nimage: tiny\ntopology: {m: {labels: {a: !secret lab/pass-word}}}\n",
    )
    assert "the secret lab/pass-word may stand only below vars and site" in stored.problems()[0]


def test_a_secret_variable_may_not_be_in_env(stored):
    stored.write(
        "roles/head/role.yaml",
        "vars: {key: x}\nrun: [{name: a, do: b, env: {K: '{{ vars.key }}'}}]\n",
    )
    stored.write("cluster/stack.yaml", STACK % "${password}")
    assert stored.problems() == [
        (
            "roles/head/role.yaml:2: vars.key is secret and may be used in files only, not in env "
            "(write it to a file with a template)"
        )
    ]


def test_a_site_may_have_one(stored):
    stored.write(
        "cluster/stack.yaml",
        "name: s\nimage: tiny\ntopology: {m: }\nsite: {token: !secret lab/pass-word}\n",
    )
    assert stored.compose().stack.site.settings == {"token": SecretRef("lab/pass-word")}


@pytest.mark.parametrize("written", ["!secret ../x", "!secret ''", "${secret:../x}"])
def test_a_bad_name_is_refused(lab, written):
    lab.write(
        "cluster/stack.yaml", (STACK % written).replace("password: !secret lab/pass-word\n", "")
    )
    (problem,) = lab.problems()
    assert problem.startswith("cluster/stack.yaml:6: ")
    assert "cannot be the name of a secret" in problem


def test_a_reference_survives_copying():
    ref = SecretRef("a/b")
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert type(pickle.loads(pickle.dumps(ref))) is SecretRef
    assert str(ref) == "!secret a/b"
