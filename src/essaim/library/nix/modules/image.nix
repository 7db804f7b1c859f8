# The disk image of a machine: one qcow2 file.
{
  config,
  lib,
  modulesPath,
  pkgs,
  ...
}:
{
  system.build.essaimDisk = import (modulesPath + "/../lib/make-disk-image.nix") {
    inherit config lib pkgs;
    name = "essaim-${config.essaim.role}";
    baseName = "disk";
    # It is sent to a server once: half the bytes are worth a little time.
    format = "qcow2-compressed";
    partitionTableType = "legacy";
    label = "nixos";
    # A copy of nixpkgs in every image would change it with each revision, and fill it.
    copyChannel = false;
    # Machines' disks grow to what their size says; this is room enough for a first boot.
    diskSize = "auto";
    additionalSpace = "1024M";
  };
}
