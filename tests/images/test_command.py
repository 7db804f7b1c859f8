"""`essaim image`: built in the form that is asked for, listed with form and size, removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from images.tools import need

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(tmp_path) -> Path:
    need("qemu-img")
    place = tmp_path / "lab"
    (place / "images").mkdir(parents=True)
    (place / "essaim.yaml").write_text("{}\n")
    (place / "disk.raw").write_bytes(bytes(2 << 20))
    (place / "images/mine.yaml").write_text("builder: import\npath: disk.raw\n")
    return place


def essaim(*words: str, lab: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", "from essaim.cli import main; main()", "image", *words],
        cwd=lab,
        env={"HOME": str(lab.parent), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_image_is_built_listed_and_removed(lab):
    done = essaim("build", "mine", lab=lab)
    assert done.returncode == 0, done.stderr
    assert "reading disk.raw" in done.stderr
    assert "mine is ready as disk: " in done.stderr
    again = essaim("build", "mine", "--form", "disk", lab=lab)
    assert again.returncode == 0
    assert "reading" not in again.stderr, "it was built twice"
    headings, row = essaim("list", lab=lab).stdout.splitlines()
    assert headings.split()[:3] == ["IMAGE", "FORM", "SIZE"]
    assert row.split()[:4] == ["mine", "disk", "0.2", "MB"]
    (one,) = json.loads(essaim("list", "--json", lab=lab).stdout)
    assert (one["form"], one["manifest"]["virtual_size"]) == ("disk", 2 << 20)
    assert Path(one["path"]).is_file()
    assert "mine: 1 removed" in essaim("remove", "mine", lab=lab).stderr
    assert not Path(one["path"]).exists()


@pytest.mark.parametrize(
    ("form", "code", "words"),
    [
        ("dsk", 2, ["no form called dsk", "did you mean disk?"]),
        ("rootfs", 1, ["builder import makes no rootfs, only disk"]),
    ],
)
def test_a_form_that_cannot_be_is_refused(lab, form, code, words):
    done = essaim("build", "mine", "--form", form, lab=lab)
    assert done.returncode == code
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr
