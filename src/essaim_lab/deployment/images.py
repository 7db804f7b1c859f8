"""The images of the deployment, made here and given to an engine: nothing is pulled."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from essaim.config.images import find_image
from essaim.images.cache import Images
from essaim_lab.deployment import rootfs
from essaim_lab.deployment.commands import call, follow
from essaim_lab.deployment.engine import Docker

FILES = Path(__file__).parent / "files"
PREFIX = "essaim-lab"
#: What each image runs, beside its packages.
CHANGES: Mapping[str, tuple[str, ...]] = {
    "base": (),
    "caddy": (),
    "redis": ("USER redis",),
    "mariadb": ('ENTRYPOINT ["sh", "/mariadb.sh"]',),
    "machine": ('ENTRYPOINT ["sh", "/machine.sh"]',),
}
#: What builds the one package that comes without a wheel, and pip, which the image does without.
TOOLS = ("pip", "setuptools", "wheel")


class Steps:
    """Says what is being made, now and then how far it is, and how long it took."""

    #: Seconds between two lines about the same.
    EVERY = 5.0

    def __init__(self, say: Callable[[str], None], count: int) -> None:
        self._say, self._count, self._number = say, count, 0
        self._said = self._began = 0.0
        self._last = ""

    def begin(self, text: str) -> None:
        """Begin the next."""
        self._number += 1
        self._began = self._said = time.monotonic()
        self._say(f"image {self._number} of {self._count}: {text}")

    def line(self, text: str) -> None:
        """Tell how far it is, if that is new and it is some time that anything was told."""
        if text not in ("", self._last) and time.monotonic() - self._said >= self.EVERY:
            self._said, self._last = time.monotonic(), text
            self._say(f"   {text}")

    def end(self) -> None:
        """Tell that it is made."""
        self._say(f"   made in {time.monotonic() - self._began:.1f} s")


def make(docker: Docker, repo: Path, cache: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Make every image; gives the settings of compose.yaml that name them."""
    steps = Steps(say, len(CHANGES) + 1)
    for image in CHANGES:
        steps.begin(f"{image}, from Debian packages")
        _load(docker, image, cache, steps.line)
        steps.end()
    steps.begin("essaim, from deploy/Dockerfile")
    with tempfile.TemporaryDirectory(prefix="essaim-image-") as name:
        wheels = wheelhouse(repo, cache, steps.line)
        _build(docker, repo, wheels, Path(name), steps.line)
    steps.end()
    return {
        "ESSAIM_IMAGE": f"{PREFIX}/essaim",
        "CADDY_IMAGE": f"{PREFIX}/caddy",
        "MARIADB_IMAGE": f"{PREFIX}/mariadb",
        "REDIS_IMAGE": f"{PREFIX}/redis",
        "MACHINE_IMAGE": f"{PREFIX}/machine",
        "BASE": f"{PREFIX}/base",
    }


def _load(docker: Docker, image: str, cache: Path, line: Callable[[str], None]) -> None:
    if image == "machine":
        worker = find_image("worker", str(Path.cwd()))
        root = Images(cache / "images").build(worker, line)
    else:
        root = rootfs.build(image, cache / "deployment", line)
    files = [script] if (script := FILES / f"{image}.sh").exists() else []
    docker.load(root, f"{PREFIX}/{image}", files=files, changes=CHANGES[image])


def wheelhouse(repo: Path, cache: Path, line: Callable[[str], None]) -> Path:
    """Download what the lock names, whatever the Python here; hashes are checked now and later."""
    folder = cache / "deployment" / "wheels"
    lock = (repo / "requirements.lock").read_text(encoding="utf-8")
    stamp = folder / "made-from"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    everything = folder / "everything.lock"
    everything.write_text(unconditional(lock), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--dest", str(folder),
           "--disable-pip-version-check", "--no-deps"]  # fmt: skip
    environ = dict(os.environ)
    words = [*pip, "--require-hashes", "-r", str(everything)]
    follow(words, environ, lambda said: line(said.partition(" (from")[0].strip()[:90]))
    call([*pip, *TOOLS], environ)
    everything.unlink()
    stamp.write_text(lock, encoding="utf-8")
    return folder


def unconditional(lock: str) -> str:
    """Drop the conditions of a lock: the image's Python may be another one than this.

    They stay where a package is named in several versions, of which one has to be chosen.
    """
    count = Counter(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))

    def drop(line: re.Match[str]) -> str:
        return line[0] if count[line["name"]] > 1 else f"{line['pin']} "

    return re.sub(r"^(?P<pin>(?P<name>[\w.-]+)==\S+) ; [^\\\n]*", drop, lock, flags=re.MULTILINE)


def _build(
    docker: Docker, repo: Path, wheels: Path, context: Path, line: Callable[[str], None]
) -> None:
    """Build the image of Essaim itself, without a network."""
    (context / "src").mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repo / "src" / "essaim", context / "src" / "essaim", ignore=ignored)
    shutil.copytree(wheels, context / "wheels", ignore=shutil.ignore_patterns("made-from"))
    shutil.copy(repo / "requirements.lock", context)
    file = str(repo / "deploy" / "Dockerfile")
    words = ["docker", "build", "--network", "none", "--build-arg", f"BASE={PREFIX}/base"]
    words += ["--file", file, "--tag", f"{PREFIX}/essaim", str(context)]
    step = ""

    def said(text: str) -> None:
        nonlocal step
        step = " ".join(text.split())[:90] if text.startswith("Step ") else step
        line(step)

    follow(words, docker.environ, said)
