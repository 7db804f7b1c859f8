"""Bruno's own command line carries out the collection that we give out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from api.rig import PASSWORD
from essaim.api.bruno import collection
from essaim_lab.computer import find
from patience import in_test_all

BRUNO = "@usebruno/cli@4.1.0"
#: A person's way through the API, in the order of the requests.
JOURNEY = ("signup", "login", "me", "rent", "one_lease", "extend", "release", "logout")


@pytest.fixture(scope="module")
def bru(tmp_path_factory):
    """Bruno's command line, from npm."""
    npm = find("npm", "npm")
    folder = tmp_path_factory.mktemp("bruno")
    words = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", BRUNO]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=900)
    return folder / "node_modules" / ".bin" / "bru"


@in_test_all
@pytest.mark.timeout(1200)
def test_a_person_goes_through_the_collection_with_bruno(bru, here, tmp_path):
    here.plane.ready("machine")
    folder = tmp_path / "essaim"
    for path, text in collection(here.app.openapi()).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    requests = {file.stem: file for file in folder.glob("*/*.bru")}
    for number, name in enumerate(JOURNEY):
        text = re.sub(r"seq: \d+", f"seq: {number + 1}", requests[name].read_text())
        (folder / f"{number}-{name}.bru").write_text(text)
    for aside in {file.parent for file in requests.values()} - {folder / "environments"}:
        shutil.rmtree(aside)
    done = subprocess.run(
        [
            bru, "run", "--env", "local", "--env-var", f"server={here.client.base_url}",
            "--env-var", f"password={PASSWORD}", "--reporter-json", tmp_path / "report.json",
        ],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = json.loads((tmp_path / "report.json").read_text())
    seen = {each["test"]["filename"]: each["response"]["status"] for each in report["results"]}
    assert len(seen) == len(JOURNEY), seen
    assert all(200 <= status < 300 for status in seen.values()), seen
