"""A node or a tenant that packs much into little exhausts neither controllers nor nodes."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
#: Bytes each side may need: far less than what is packed.
ALLOWED = 400 << 20
PACKED = 512 << 20
SERVER = """
import resource, sys
from pathlib import Path
from essaim.model.errors import RejectedError
from essaim.store.homes import Homes
data = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
try:
    Homes(Path(sys.argv[2])).add("l-abcd", 0, "n-1", data, full=True)
    print("kept")
except RejectedError as error:
    print("refused:", error)
"""
NODE = """
import resource, sys, io
from essaim.agent.common import Trouble
from essaim.agent.restoring import restore_layers
data = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
try:
    restore_layers(io.BytesIO(data), [len(data)], sys.argv[2], 64 << 20)
    print("restored")
except Trouble as error:
    print("refused:", error)
"""


def packed(*parts: tuple[bytes, int]) -> bytes:
    """Each part so many times, packed."""
    body = io.BytesIO()
    with gzip.GzipFile(fileobj=body, mode="wb", compresslevel=1) as file:
        for part, times in parts:
            file.write(part * times)
    return body.getvalue()


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    return entry.tobuf(tarfile.USTAR_FORMAT)


def bombs() -> dict[str, bytes]:
    label = json.dumps({"at": 1, "names": [], "folders": []}).encode()
    small = header(".essaim-layer", len(label)) + label.ljust(tarfile.BLOCKSIZE, b"\0")
    blank = b" " * (1 << 20)
    begin = b'{"at": 1, "names": [], "folders": []'
    long_label = begin.ljust(tarfile.BLOCKSIZE)
    end = b"}".rjust(tarfile.BLOCKSIZE)
    return {
        "label": packed(
            (header(".essaim-layer", PACKED + 2 * tarfile.BLOCKSIZE) + long_label, 1),
            (blank, PACKED >> 20),
            (end + bytes(1024), 1),
        ),
        "names of a file": packed(
            (small, 1), (header("x", PACKED, tarfile.XHDTYPE), 1), (blank, PACKED >> 20)
        ),
        "names of the label": packed(
            (header("x", PACKED, tarfile.XHDTYPE), 1), (blank, PACKED >> 20)
        ),
        "file": packed((small, 1), (header("zeros", PACKED), 1), (bytes(1 << 20), PACKED >> 20)),
    }


@pytest.fixture(scope="module")
def hostile() -> dict[str, bytes]:
    return bombs()


def run(program: str, data: bytes, place: Path) -> str:
    place.mkdir()
    words = [sys.executable, "-P", "-c", program, str(ALLOWED), str(place)]
    done = subprocess.run(
        words,
        input=data,
        capture_output=True,
        check=False,
        timeout=250,
        env={"PYTHONPATH": str(SRC)},
    )
    assert done.returncode == 0, done.stderr.decode()[-500:]
    return done.stdout.decode()


@pytest.mark.parametrize("kind", ["label", "names of a file", "names of the label", "file"])
def test_a_packed_home_does_not_exhaust_the_control_plane(hostile, kind, tmp_path):
    assert len(hostile[kind]) < 4 << 20
    said = run(SERVER, hostile[kind], tmp_path / "homes")
    assert said.startswith("refused: " if kind == "names of the label" else "kept")


@pytest.mark.parametrize("kind", ["label", "names of a file", "names of the label", "file"])
def test_a_packed_home_does_not_exhaust_a_node(hostile, kind, tmp_path):
    said = run(NODE, hostile[kind], tmp_path / "home")
    assert said.startswith("refused: ")
    assert sum(path.stat().st_size for path in (tmp_path / "home").rglob("*")) <= 128 << 20
