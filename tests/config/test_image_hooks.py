"""Scripts that an image's hooks name by their file: read with the image, and part of its digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from essaim.config.images import find_image
from essaim.model.errors import InvalidError

IMAGE = "builder: template\ntemplate: debian\nextras:\n  hooks:\n    start: {hook}\n"
SCHOOL = Path(__file__).parents[2] / "examples" / "school"


def lab(place: Path, hook: str) -> str:
    (place / "images").mkdir(exist_ok=True)
    (place / "hooks").mkdir(exist_ok=True)
    (place / "essaim.yaml").write_text("")
    (place / "images" / "gui.yaml").write_text(IMAGE.format(hook=hook))
    return str(place)


def test_the_text_of_the_script_is_what_counts(tmp_path):
    where = lab(tmp_path, "{file: hooks/start.sh}")
    script = tmp_path / "hooks" / "start.sh"
    script.write_text("exit 0\n")
    first = find_image("gui", where)
    assert first.settings["extras"]["hooks"] == {"start": "exit 0\n"}
    assert find_image("gui", lab(tmp_path, '"exit 0\\n"')).digest == first.digest
    lab(tmp_path, "{file: hooks/start.sh}")
    script.write_text("exit 1\n")
    assert find_image("gui", where).digest != first.digest


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        ("{file: hooks/none.sh}", "cannot read hook start: hooks/none.sh: No such file"),
        ("{file: ../secret}", r"hook start: \.\./secret is not inside"),
        ("{file: hooks/link.sh}", "hook start: hooks/link.sh is not inside"),
        ("{path: hooks/a.sh}", "hook start must be a script, or name its file"),
        ("{file: hooks/binary}", "cannot read hook start: hooks/binary: not a text in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_a_script_is_told_with_its_place(tmp_path, hook, says):
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "lab").mkdir()
    where = lab(tmp_path / "lab", hook)
    (tmp_path / "lab" / "hooks" / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "lab" / "hooks" / "link.sh").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidError, match=says) as caught:
        find_image("gui", where)
    assert caught.value.problems[0].place
    assert "s3cret" not in str(caught.value)


def test_the_schools_example_holds_its_hooks():
    extras = find_image("directory", str(SCHOOL)).settings["extras"]
    for name in ("mount", "start"):
        assert extras["hooks"][name] == (SCHOOL / "hooks" / f"{name}.sh").read_text()
