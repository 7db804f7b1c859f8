"""Every role evaluates with a real nixpkgs: set ESSAIM_NIXPKGS to a tree of it (and have Nix).

Takes five seconds of a processor and a gigabyte of memory for each role.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from essaim.images import nix
from essaim.images.nix_host import Here
from essaim.model.errors import InvalidError
from essaim.model.stacks import Image

FLAKE = Path(nix.__file__).parents[1] / "library" / "nix"
ROLES = sorted(path.stem for path in (FLAKE / "roles").glob("*-*.nix"))
#: What a unit waits for that only a role brings.
CONDITIONS = {
    "slurm-controller": {
        "munged": "/etc/munge/munge.key",
        "slurmctld": "/etc/slurm/slurm.conf",
    },
    "slurm-node": {"munged": "/etc/munge/munge.key", "slurmd": "/etc/essaim/slurmd.env"},
    "k3s-server": {"k3s": "/etc/essaim/k3s.yaml"},
    "k3s-agent": {"k3s": "/etc/essaim/k3s.yaml"},
    "oar-server": {"oar-sshd": "/etc/oar/sshd_config"},
    "oar-node": {"oar-sshd": "/etc/oar/sshd_config"},
}
FACTS = """
(c: {
  host = c.networking.hostName;
  seed = {
    inherit (c.services.cloud-init) enable;
    inherit (c.services.cloud-init.settings) datasource_list cloud_init_modules users;
  };
  networkd = c.systemd.network.enable;
  networks = builtins.attrNames c.systemd.network.networks;
  root = { inherit (c.users.users.root) password hashedPassword initialHashedPassword; };
  keys = c.users.users.root.openssh.authorizedKeys.keys;
  login = c.services.openssh.settings.PermitRootLogin;
  grub = c.boot.loader.grub.devices;
  efi = c.boot.loader.grub.efiSupport;
  console = builtins.filter (p: builtins.match "console=.*" p != null) c.boot.kernelParams;
  grows = c.boot.growPartition && c.fileSystems."/".autoResize;
  modules = c.boot.initrd.availableKernelModules;
  conditions = builtins.mapAttrs (_: unit: unit.unitConfig.ConditionPathExists or "") {
    inherit (c.systemd.services) UNITS;
  };
}) (get words self)
"""

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get(nix.NIXPKGS), reason="ESSAIM_NIXPKGS names no nixpkgs tree"
    ),
    pytest.mark.skipif(shutil.which("nix-instantiate") is None, reason="there is no Nix here"),
]


def image(flake: Path, role: str) -> Image:
    return Image(name="n", builder="nix", digest="n", settings={"path": str(flake), "role": role})


@pytest.mark.parametrize("role", ["generic", *ROLES])
def test_every_role_evaluates(role):
    found = nix.examine(image(FLAKE, role))
    assert found.stage is nix.Stage.EVALUATED, found.lacks
    assert found.drv_path.endswith(f"-essaim-{role}.drv")
    # nixpkgs has no OAR, and nobody may think otherwise.
    assert [("holds no OAR" in text) for text in found.warnings] == [True] * role.startswith("oar-")


@pytest.mark.parametrize("role", ROLES)
def test_a_machine_is_nobody_until_it_is_told(role):
    units = " ".join(CONDITIONS[role])
    command = nix._from_tree(
        str(FLAKE), FACTS.replace("UNITS", units), f"nixosConfigurations.{role}.config"
    )
    done = Here().run(*command)
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert facts["host"] == ""
    assert facts["keys"] == []
    assert facts["root"] == {
        "password": None, "hashedPassword": None, "initialHashedPassword": None
    }  # fmt: skip
    assert facts["login"] == "prohibit-password"
    assert facts["seed"]["enable"]
    assert facts["seed"]["users"] == []
    assert facts["seed"]["datasource_list"] == ["NoCloud", "None"]
    assert "ssh" in facts["seed"]["cloud_init_modules"]  # before the SSH server starts
    assert facts["networkd"]
    assert facts["networks"] == []  # they come from the seed
    assert facts["grub"] == ["/dev/vda"]
    assert not facts["efi"]
    assert facts["console"][-1].startswith("console=ttyS0")
    assert facts["grows"]
    assert "virtio_blk" in facts["modules"]
    assert facts["conditions"] == CONDITIONS[role]


@pytest.fixture
def copy(tmp_path) -> Path:
    return Path(shutil.copytree(FLAKE, tmp_path / "nix"))


def change(file: Path, old: str, new: str) -> int:
    """Replace the first `old`; gives the number of its line."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def test_a_misspelt_option_is_reported_with_file_and_name(copy):
    file = copy / "modules/generic.nix"
    line = change(file, "enable = true;", "enablee = true;")
    with pytest.raises(InvalidError) as caught:
        nix.examine(image(copy, "generic"))
    assert str(caught.value) == (
        f"{file}:{line}: there is no option services.openssh.enablee (did you mean enable?)"
    )


def test_a_value_of_the_wrong_type_is_reported_with_file_and_name(copy):
    file = copy / "roles/k3s-agent.nix"
    line = change(file, '"agent"', '"agnet"')
    with pytest.raises(InvalidError) as caught:
        nix.examine(image(copy, "k3s-agent"))
    assert str(caught.value).startswith(f"{file}:{line}: option services.k3s.role must be a ")


def test_a_package_that_is_not_there_is_reported_with_its_place(copy):
    file = copy / "roles/slurm.nix"
    line = change(file, "pkgs.munge\n", "pkgs.mungee\n")
    with pytest.raises(InvalidError) as caught:
        nix.examine(image(copy, "slurm-node"))
    assert str(caught.value) == (
        f"{file}:{line}: there is no attribute mungee (did you mean munge?)"
    )


def test_a_tree_that_is_none_is_not_taken_for_one(tmp_path, monkeypatch):
    monkeypatch.setenv(nix.NIXPKGS, str(tmp_path))
    found = nix.examine(image(FLAKE, "generic"))
    assert found.stage is nix.Stage.PARSED
    assert "is not a nixpkgs tree" in found.lacks
