"""Parsed, evaluated, built: real Nix in a store of its own, here and over a real SSH server."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from databases import find
from drivers.lab import wait_for
from essaim.images import nix
from essaim.images.cache import Images
from essaim.model.errors import InvalidError, RejectedError, SetupError, TransientError
from essaim.model.machines import Form
from essaim.model.stacks import Image
from essaim_lab.computer import free_port

FLAKE = Path(nix.__file__).parents[1] / "library" / "nix"
LOCK = {"nodes": {"root": {}}, "root": "root", "version": 7}
#: Makes disks with what this computer has: no nixpkgs, no network, no virtual machine.
SMALL = """{
  outputs = { self }:
    let
      make = extra: derivation ({
        name = "small";
        system = "x86_64-linux";
        builder = "/bin/sh";
        args = [ "-c" "/bin/mkdir $out; /usr/bin/qemu-img create -q -f qcow2 $out/disk.qcow2 8M" ];
      } // extra);
    in
    {
      packages.x86_64-linux.small-image = builtins.trace "warning: it is small" (make { });
      packages.x86_64-linux.kvm-image = make { requiredSystemFeatures = [ "kvm" ]; };
      packages.x86_64-linux.empty-image = make { args = [ "-c" "/bin/mkdir $out" ]; };
      packages.x86_64-linux.broken-image = make { args = [ "-c" "echo it broke; exit 1" ]; };
    };
}
"""


@pytest.fixture(scope="session")
def tools() -> None:
    wanted = {"nix": "nix-bin", "qemu-img": "qemu-utils", "/usr/sbin/sshd": "openssh-server"}
    for program, package in wanted.items():
        find(program, package)


@pytest.fixture
def store(tools, tmp_path, monkeypatch) -> dict[str, str]:
    """A store that nobody else has, in which Nix may build without a daemon."""
    conf = tmp_path / "conf"
    conf.mkdir()
    conf.joinpath("nix.conf").write_text(
        "sandbox = false\nsubstituters =\nbuild-users-group =\n"
        "system-features = benchmark\nconnect-timeout = 1\ndownload-attempts = 1\n"
    )
    places = {
        "NIX_STORE_DIR": tmp_path / "store",
        "NIX_STATE_DIR": tmp_path / "state",
        "NIX_LOG_DIR": tmp_path / "log",
        "NIX_CONF_DIR": conf,
        "HOME": tmp_path / "home",
    }
    for name, place in places.items():
        monkeypatch.setenv(name, str(place))
    monkeypatch.delenv(nix.NIXPKGS, raising=False)
    return {name: str(place) for name, place in places.items()}


@pytest.fixture
def small(tmp_path) -> Path:
    flake = tmp_path / "flake"
    flake.mkdir()
    (flake / "flake.nix").write_text(SMALL)
    (flake / "flake.lock").write_text(json.dumps(LOCK))
    return flake


def image(flake: Path, **settings: str) -> Image:
    return Image(name="n", builder="nix", digest="n", settings={"path": str(flake), **settings})


def built(tmp_path: Path, wanted: Image) -> tuple[Path, dict, list[str]]:
    said: list[str] = []
    images = Images(tmp_path / "cache")
    path = images.build(wanted, said.append, Form.DISK)
    (found,) = images.list()
    return path, found.manifest, said


def test_without_nix_a_flake_is_parsed_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("essaim.images.inside._SYSTEM", str(tmp_path))
    monkeypatch.setenv(nix.NIXPKGS, "")
    wanted = image(FLAKE, role="slurm-node")
    found = nix.examine(wanted)
    assert found.stage is nix.Stage.PARSED
    assert found.drv_path == ""
    assert found.lacks == "nix is not installed here"
    assert "evaluated  no" in "\n".join(nix.lines(found))
    images = Images(tmp_path / "cache")
    with pytest.raises(SetupError, match=r"parsed \(\d+ files\), not evaluated: nix is not") as no:
        images.build(wanted, lambda _line: None, Form.DISK)
    assert no.value.exit_code == 3
    assert "nix-bin" in no.value.hint
    assert images.ready(wanted, Form.DISK) is None


def test_without_nixpkgs_the_flake_is_parsed_and_no_more(store, tmp_path, monkeypatch):
    # A proxy nobody listens at: the same as no network, and at once.
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    found = nix.examine(image(FLAKE, role="generic"))
    assert found.stage is nix.Stage.PARSED
    assert "cannot be fetched" in found.lacks
    assert "ESSAIM_NIXPKGS" in found.hint


def test_a_disk_is_built_and_its_manifest_says_from_what(store, small, tmp_path):
    wanted = image(small, role="small")
    assert nix.examine(wanted).stage is nix.Stage.EVALUATED
    path, manifest, said = built(tmp_path, wanted)
    assert path.read_bytes()[:4] == b"QFI\xfb"
    assert path.stat().st_mode & 0o200  # not the store's own, which nobody may write
    assert manifest["stage"] == "built"
    assert manifest["drvPath"].startswith(store["NIX_STORE_DIR"])
    assert manifest["outPath"].endswith("-small")
    assert manifest["narHash"].startswith("sha256-")
    assert manifest["tools"]["nix"].startswith("nix (Nix) 2.")
    assert manifest["lock"] == LOCK
    assert set(manifest["files"]) == {"flake.nix"}
    assert manifest["warnings"] == ["it is small"]
    assert manifest["virtual_size"] == 8 << 20
    stages = [line.partition(" ")[0] for line in said]
    assert [word for word in stages if word in set(nix.Stage)] == ["parsed", "evaluated", "built"]


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("kvm", "evaluated, not built: NixOS makes disks in a virtual machine"),
        ("broken", "evaluated, not built: nix refuses it"),
    ],
)
def test_what_cannot_be_built_was_evaluated_and_no_more(store, small, tmp_path, role, said):
    wanted = image(small, role=role)
    assert nix.examine(wanted).stage is nix.Stage.EVALUATED
    with pytest.raises(SetupError, match=said) as caught:
        built(tmp_path, wanted)
    assert caught.value.hint
    assert Images(tmp_path / "cache").ready(wanted, Form.DISK) is None


def test_a_build_without_a_disk_is_refused(store, small, tmp_path):
    with pytest.raises(RejectedError, match="has 0 qcow2 files"):
        built(tmp_path, image(small, role="empty"))


def test_a_role_that_is_not_there_is_refused_with_a_near_spelling(store, small):
    with pytest.raises(InvalidError, match=r"smalll-image \(did you mean small-image\?\)"):
        nix.examine(image(small, role="smalll"))


def test_a_place_in_the_copy_nix_made_is_told_as_the_users_own_file(store, small):
    (small / "flake.nix").write_text("{\n  outputs = { self }: {\n    a = b;\n  };\n}\n")
    with pytest.raises(InvalidError) as caught:
        nix.examine(image(small, attribute="a"))
    assert str(caught.value) == f"{small}/flake.nix:3: there is no variable b"


def essaim(*words: str, path: str, lab: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from essaim.cli import main; main()", *words],
        capture_output=True,
        text=True,
        cwd=lab,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(FLAKE.parents[2])},
        check=False,
    )


def test_the_command_line_says_how_far_it_came(store, small, tmp_path):
    lab = tmp_path / "lab"
    (lab / "images").mkdir(parents=True)
    (lab / "essaim.yaml").write_text("")
    (lab / "images/small.yaml").write_text("builder: nix\npath: ../flake\nrole: small\n")
    check = ("image", "check", "small", "--json")
    done = essaim(*check, path=os.environ["PATH"], lab=lab)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stage"] == "evaluated"
    assert json.loads(done.stdout)["warnings"] == ["it is small"]

    bare = tmp_path / "bare"
    bare.mkdir()
    done = essaim("image", "check", "nixos", path=str(bare), lab=lab)
    assert done.returncode == 4, done.stderr
    assert done.stdout.splitlines()[0].startswith("parsed     yes  ")
    assert done.stdout.splitlines()[1] == "evaluated  no   nix is not installed here"
    assert done.stdout.splitlines()[-1] == "built      not tried"

    (small / "flake.nix").write_text("{ outputs = { self }: { a = ; }; }\n")
    done = essaim(*check[:3], path=os.environ["PATH"], lab=lab)
    assert done.returncode == 2
    assert "flake.nix:1:28: a value is missing after `=`" in done.stderr


@pytest.fixture
def server(store, tmp_path):
    """An SSH server on loopback whose sessions have that store, and what an image says of it."""
    box = tmp_path / "sshd"
    box.mkdir(mode=0o700)
    for name in ("host", "user", "other"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(box / name)], check=True
        )
    port = free_port()
    environment = " ".join(f"{name}={place}" for name, place in store.items() if name != "HOME")
    (box / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {box}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {box}/user.pub\nStrictModes no\nPermitRootLogin yes\n"
        f"SetEnv {environment}\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    log = (box / "log").open("wb")
    sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(box / "config")], stderr=log)
    try:
        wait_for(lambda: b"listening" in (box / "log").read_bytes(), "the SSH server listens")
        yield {
            "host": f"ssh://{getpass.getuser()}@127.0.0.1:{port}",
            "host_key": (box / "host.pub").read_text(),
            "key": str(box / "user"),
        }
    finally:
        sshd.terminate()
        sshd.wait()
        log.close()


def test_another_computer_builds_it(server, small, tmp_path, monkeypatch):
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    # Not on this one: it has no Nix but that of the server's sessions.
    real = shutil.which
    monkeypatch.setattr(
        "essaim.images.nix_host.shutil.which",
        lambda tool, **more: None if tool.startswith("nix") else real(tool, **more),
    )
    before = set(Path("/tmp").glob("tmp.*"))
    wanted = image(small, role="small", **server)
    assert nix.examine(wanted).stage is nix.Stage.EVALUATED
    path, manifest, _said = built(tmp_path, wanted)
    assert path.read_bytes()[:4] == b"QFI\xfb"
    assert manifest["host"] == "127.0.0.1"
    assert manifest["narHash"].startswith("sha256-")
    left = {box for box in set(Path("/tmp").glob("tmp.*")) - before if (box / "flake.nix").exists()}
    assert left == set()


def test_a_computer_with_another_host_key_is_not_talked_to(server, small, tmp_path):
    other = (tmp_path / "sshd/other.pub").read_text()
    with pytest.raises(RejectedError, match="has another host key"):
        nix.examine(image(small, role="small", **{**server, "host_key": other}))


def test_a_computer_that_does_not_know_us_says_so(server, small, tmp_path):
    with pytest.raises(RejectedError, match="does not let us in"):
        nix.examine(image(small, role="small", **{**server, "key": str(tmp_path / "sshd/other")}))


def test_a_computer_that_does_not_answer_may_answer_later(server, small, tmp_path):
    away = {**server, "host": f"ssh://127.0.0.1:{free_port()}"}
    with pytest.raises(TransientError, match="cannot be reached"):
        nix.examine(image(small, role="small", **away))
    with pytest.raises(TransientError, match=r"parsed \(1 files\), not evaluated: .* be reached"):
        built(tmp_path, image(small, role="small", **away))
