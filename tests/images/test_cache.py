"""Images are built by real mmdebstrap from a real mirror, once, and whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from drivers.lab import wait_for
from drivers.plain_user import USER_NAMESPACE
from essaim.images.cache import Images
from essaim.model.errors import RejectedError, SetupError
from essaim.model.machines import Form
from essaim.model.stacks import Image
from patience import in_test_all

ROOT = Path(__file__).parents[2]
TINY = Image(
    name="tiny",
    builder="debian",
    digest="sha256:tiny",
    settings={
        "suite": "bookworm",
        "packages": ["openssh-server"],
        "commands": [["sh", "-c", "cat /usr/sbin/policy-rc.d /etc/hosts > '/etc/it was here'"]],
        "remove": ["/usr/share/doc/*", "/etc/issu?"],
    },
)
BUILD = """
import json, sys
from pathlib import Path
from essaim.images.cache import Images
from essaim.model.stacks import Image
image = Image(**json.loads(sys.argv[2]))
print(Images(Path(sys.argv[1])).build(image, lambda line: print(line, flush=True)))
"""


def arguments(cache: Path, image: Image) -> list[str]:
    fields = {key: getattr(image, key) for key in ("name", "builder", "digest", "settings")}
    return ["-c", BUILD, str(cache), json.dumps(fields)]


def builders(cache: Path) -> list[str]:
    """Processes that still build in that cache."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(cache).encode() in words and b"mmdebstrap" in words:
            found.append(path.parent.name)
    return found


def test_a_built_image_is_found_again_with_its_manifest(shared, base):
    images = Images(shared)
    built = next(one for one in images.list() if one.path == base)
    assert (built.name, built.digest) == ("test-base", "test-base-1")
    manifest = built.manifest
    assert manifest["packages"]["openssh-server"]
    assert manifest["tools"]["mmdebstrap"].startswith("mmdebstrap ")
    assert manifest["settings"]["suite"] == "bookworm"
    assert all(line.startswith("deb ") for line in manifest["sources"])
    assert built.seconds > 0
    assert built.form is Form.ROOTFS
    assert list((base / "etc/ssh").glob("ssh_host_*")) == []


def test_interrupted_builds_do_not_count_and_two_at_once_make_one(cache):
    images = Images(cache)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *arguments(cache, TINY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("installing"):
                break
        process.send_signal(signal.SIGKILL)
    assert images.ready(TINY) is None
    assert images.list() == []
    wait_for(lambda: not builders(cache), "the build has ended with its builder")

    said: list[list[str]] = [[], []]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(Images(cache).build, TINY, said[n].append) for n in range(2)]
        first, second = (job.result() for job in jobs)
    assert first == second == images.ready(TINY)
    waiting = "waiting for another build of tiny"
    assert [waiting] in said
    (words,) = [lines for lines in said if len(lines) > 1]
    # The lock of the build that was killed may outlive its processes by a moment.
    words = words[words[0] == waiting :]
    assert words[0] == "reading package lists"
    assert any(word.startswith("found ") for word in words), "packages were downloaded again"
    assert any(word.startswith("installing openssh-server (") for word in words)
    assert "running command 1/1" in words

    made = (first / "etc/it was here").read_text()
    assert made.startswith("#!/bin/sh\nexit 101\n127.0.0.1 localhost ")
    assert (first / "etc/hosts").read_text() == "127.0.0.1 localhost\n"
    assert os.listdir(first / "usr/share/doc") == []
    assert not (first / "etc/issue").exists()
    assert sorted(path.name for path in cache.iterdir() if path.name.startswith(".")) == []

    assert [one.name for one in images.list()] == ["tiny"]
    assert images.remove("other") == 0
    assert images.remove("tiny") == 1
    assert images.ready(TINY) is None
    assert sorted(os.listdir(cache)) == ["archives", "locks", "logs"]


def test_a_build_given_up_leaves_nothing(cache):
    def give_up(line: str) -> None:
        if line.startswith("found"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Images(cache).build(TINY, give_up)
    assert builders(cache) == []
    assert sorted(os.listdir(cache)) == ["archives", "locks", "logs"]


@in_test_all
def test_a_package_that_does_not_exist_is_named(cache):
    image = replace(TINY, settings={"suite": "bookworm", "packages": ["no-such-thing"]})
    with pytest.raises(RejectedError, match="Debian bookworm has no package no-such-thing"):
        Images(cache).build(image, lambda _line: None)
    assert Images(cache).ready(image) is None
    assert not list(cache.glob(".new-*"))


def test_a_mirror_that_does_not_answer_is_a_matter_of_setup(cache):
    image = replace(TINY, settings={"suite": "bookworm", "mirror": "http://127.0.0.1:9/debian"})
    with pytest.raises(SetupError, match="the Debian mirror cannot be reached") as caught:
        Images(cache).build(image, lambda _line: None)
    assert "127.0.0.1" in str(caught.value)
    assert caught.value.hint


@in_test_all
def test_a_command_that_fails_is_shown(cache):
    settings = {"suite": "bookworm", "commands": [["sh", "-c", "echo E: the reason; exit 3"]]}
    image = replace(TINY, settings=settings)
    with pytest.raises(RejectedError, match="E: the reason"):
        Images(cache).build(image, lambda _line: None)
    assert not list(cache.glob(".new-*"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"suite": "../bookworm"},
        {"suite": "bookworm", "packages": ["--option"]},
        {"suite": "bookworm", "packages": ["a b"]},
        {"suite": "bookworm", "commands": ["rm -rf /"]},
        {"suite": "bookworm", "commands": [[]]},
        {"suite": "bookworm", "remove": ["relative"]},
        {"suite": "bookworm", "remove": ["/a/../../b"]},
        {"suite": "bookworm", "remove": ["/a;b"]},
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_done(tmp_path, settings):
    with pytest.raises(RejectedError):
        Images(tmp_path).build(replace(TINY, settings=settings), lambda _line: None)
    assert os.listdir(tmp_path) == []


def test_an_unknown_builder_is_refused(tmp_path):
    with pytest.raises(RejectedError, match="builder 'debian12' is not known") as caught:
        Images(tmp_path).build(replace(TINY, builder="debian12"), lambda _line: None)
    assert caught.value.hint == "did you mean debian?"
    assert Images(tmp_path).ready(replace(TINY, builder="debian12")) is None


def test_missing_tools_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("essaim.images.inside.environment", lambda: {"PATH": str(tmp_path)})
    with pytest.raises(SetupError) as caught:
        Images(tmp_path).build(TINY, lambda _line: None)
    assert caught.value.hint.startswith("sudo apt-get install mmdebstrap")


def test_a_computer_that_cannot_build_is_a_matter_of_setup(cache, monkeypatch):
    monkeypatch.setattr(
        "essaim.images.debian.as_root", lambda *_words: ["sh", "-c", "echo no; exit 1"]
    )
    with pytest.raises(SetupError, match="builds cannot run here:\nno"):
        Images(cache).build(TINY, lambda _line: None)


FULL = """
import sys
from pathlib import Path
from essaim.images.cache import Images
from essaim.model.errors import SetupError
from essaim.model.stacks import Image
image = Image(name="tiny", builder="debian", digest="tiny", settings={"suite": "bookworm"})
try:
    Images(Path(sys.argv[1])).build(image, lambda line: None)
except SetupError as error:
    sys.exit(str(error))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_full_disk_is_a_matter_of_setup(tmp_path):
    script = 'mount -t tmpfs -o size=60m tmpfs "$1"; shift; exec "$@"'
    program = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path), *program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "image tiny: the disk is full\n"


@in_test_all
@pytest.mark.root
def test_a_plain_user_builds_and_removes_images_too(somebody, shared, base):
    cache = somebody.home / "cache"
    shutil.copytree(shared / "archives", cache / "archives")
    subprocess.run(["chown", "-R", f"{somebody.uid}:{somebody.gid}", str(cache)], check=True)
    leftover = 'mkdir -p "$1/x"; chown 5:5 "$1/x"; chmod 700 "$1/x"'
    place = str(cache / ".new-sha256-tiny-rootless")
    made = somebody.run(*USER_NAMESPACE, "sh", "-ec", leftover, "sh", place)
    assert made.returncode == 0, made.stderr
    done = somebody.run_python(*arguments(cache, TINY))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "found " in done.stdout, "packages were downloaded again"
    rootfs = Path(done.stdout.splitlines()[-1])
    assert rootfs == cache / "sha256-tiny-rootless" / "rootfs"
    assert (rootfs / "usr/sbin/sshd").stat().st_uid == somebody.uid
    owners = {path.stat().st_uid for path in (rootfs / "var").rglob("*") if not path.is_symlink()}
    remove = (
        "import sys; from pathlib import Path; from essaim.images.cache import Images;"
        "assert Images(Path(sys.argv[1])).remove('tiny') == 1"
    )
    done = somebody.run_python("-c", remove, str(cache))
    assert done.returncode == 0, done.stderr
    assert not rootfs.parent.exists()
    assert owners >= {somebody.uid}
