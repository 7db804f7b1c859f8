"""The images of the deployment, made here and given to an engine: nothing is pulled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from essaim.config.images import find_image
from essaim.images.cache import Images
from essaim_lab.deployment import rootfs
from essaim_lab.deployment.engine import Docker, call

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


def make(docker: Docker, repo: Path, cache: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Make every image; gives the settings of compose.yaml that name them."""
    for image in CHANGES:
        say(f"image {image}")
        _load(docker, image, cache)
    say("image essaim")
    with tempfile.TemporaryDirectory(prefix="essaim-image-") as name:
        _build(docker, repo, wheelhouse(repo, cache), Path(name))
    return {
        "ESSAIM_IMAGE": f"{PREFIX}/essaim",
        "CADDY_IMAGE": f"{PREFIX}/caddy",
        "MARIADB_IMAGE": f"{PREFIX}/mariadb",
        "REDIS_IMAGE": f"{PREFIX}/redis",
        "MACHINE_IMAGE": f"{PREFIX}/machine",
        "BASE": f"{PREFIX}/base",
    }


def _load(docker: Docker, image: str, cache: Path) -> None:
    if image == "machine":
        worker = find_image("worker", str(Path.cwd()))
        root = Images(cache / "images").build(worker, lambda _line: None)
    else:
        root = rootfs.build(image, cache / "deployment", lambda _line: None)
    files = [script] if (script := FILES / f"{image}.sh").exists() else []
    docker.load(root, f"{PREFIX}/{image}", files=files, changes=CHANGES[image])


def wheelhouse(repo: Path, cache: Path) -> Path:
    """Download what the lock names, whatever the Python here; hashes are checked now and later."""
    folder = cache / "deployment" / "wheels"
    lock = (repo / "requirements.lock").read_text(encoding="utf-8")
    stamp = folder / "made-from"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # The image's Python may be another one than this.
    everything = folder / "everything.lock"
    everything.write_text(re.sub(r" ; [^\\\n]*", " ", lock), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    environ = dict(os.environ)
    call([*pip, "--require-hashes", "--no-deps", "-r", str(everything)], environ)
    call([*pip, "--no-deps", *TOOLS], environ)
    everything.unlink()
    stamp.write_text(lock, encoding="utf-8")
    return folder


def _build(docker: Docker, repo: Path, wheels: Path, context: Path) -> None:
    """Build the image of Essaim itself, without a network."""
    (context / "src").mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(repo / "src" / "essaim", context / "src" / "essaim", ignore=ignored)
    shutil.copytree(wheels, context / "wheels", ignore=shutil.ignore_patterns("made-from"))
    shutil.copy(repo / "requirements.lock", context)
    file = str(repo / "deploy" / "Dockerfile")
    words = ["build", "--quiet", "--network", "none", "--build-arg", f"BASE={PREFIX}/base"]
    try:
        docker.run(*words, "--file", file, "--tag", f"{PREFIX}/essaim", str(context))
    except subprocess.CalledProcessError as error:
        raise RuntimeError(
            f"the image of Essaim cannot be built:\n{error.stdout[-4000:]!r}"
        ) from error
