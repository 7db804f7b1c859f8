"""Whatever is in an argument or a variable arrives as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from essaim.model.errors import RejectedError
from essaim.remote.wrap import far_line

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
NAMES = st.from_regex(r"E_[A-Za-z0-9_]{0,8}", fullmatch=True)
SHOW = """
for name in $NAMES; do eval "printf '%s\\0' \\"\\$$name\\""; done
for word; do printf '%s\\0' "$word"; done
"""


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(words=st.lists(WORDS, max_size=5), env=st.dictionaries(NAMES, WORDS, max_size=3))
def test_arguments_and_variables_come_through_unchanged(shared_remote, box, words, env):
    names = {"NAMES": " ".join(env)}
    result = shared_remote.run(
        box.target, ["sh", "-c", SHOW, "sh", *words], env=env | names, within=60
    )
    assert result.exit_code == 0
    assert result.stdout == "".join(f"{word}\0" for word in [*env.values(), *words])


@pytest.mark.parametrize(
    "nasty", ["$(reboot)", "`id`", "a'b\"c", "-n", "--", "*", "~", "a\nb", "\\", "!x", "A=b", "é☃"]
)
def test_a_nasty_word_is_only_a_word(shared_remote, box, nasty):
    result = shared_remote.run(box.target, ["printf", "%s", "--", nasty], within=60)
    assert result.stdout.endswith(nasty)


def test_a_word_is_a_program_even_when_the_shell_has_its_own(shared_remote, box):
    # dash's own echo would turn \t into a tab.
    assert shared_remote.run(box.target, ["echo", r"a\tb"], within=60).stdout == "a\\tb\n"
    assert shared_remote.run(box.target, ["A=b"], within=60).exit_code == 127


def test_scripts_are_taken_as_they_are(shared_remote, box):
    script = "x='a  b'\nfor i in 1 2; do echo \"$i$x\"; done; false || exit 7"
    result = shared_remote.run(box.target, script, within=60)
    assert (result.stdout, result.exit_code) == ("1a  b\n2a  b\n", 7)


def test_commands_become_root_where_the_login_is_not(shared_remote, box):
    student = replace(box.target, user="student")
    assert shared_remote.run(student, ["id", "-un"], within=60).stdout == "student\n"
    root = replace(student, become=("sudo", "-n"))
    result = shared_remote.run(root, "id -un; echo $A", env={"A": "a b"}, within=60)
    assert result.stdout == "root\na b\n"


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ([], {}),
        ("", {}),
        (["a\0b"], {}),
        (["\udcff"], {}),
        (["x" * 200_000], {}),
        (["true"], {"A B": "c"}),
        (["true"], {"A;reboot": "c"}),
    ],
)
def test_what_cannot_be_carried_is_refused_before_anything_is_sent(command, env):
    with pytest.raises(RejectedError):
        far_line(command, env=env, become=(), within=1, stdin=False)
