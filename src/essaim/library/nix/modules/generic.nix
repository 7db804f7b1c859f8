# A machine that is nobody yet.  Who it is (name, addresses, host key, who may enter) comes from its
# seed at the first boot; what it does in a cluster comes later, over SSH, as files.
{ lib, modulesPath, ... }:
{
  imports = [
    (modulesPath + "/profiles/qemu-guest.nix")
    (modulesPath + "/profiles/minimal.nix")
    ./boot.nix
    ./image.nix
    ./seed.nix
    ./customs.nix
  ];

  options.essaim.role = lib.mkOption {
    type = lib.types.str;
    description = "What the machine has the software for; it is part of the image's name.";
  };

  config = {
    # Empty: then NixOS leaves the name to whoever sets it at boot.
    networking.hostName = "";

    # Each machine has its own host key, from its seed; one is made only where the seed has none.
    services.openssh = {
      enable = true;
      hostKeys = [
        {
          type = "ed25519";
          path = "/etc/ssh/ssh_host_ed25519_key";
        }
      ];
      settings = {
        PermitRootLogin = "prohibit-password";
        PasswordAuthentication = false;
        KbdInteractiveAuthentication = false;
      };
    };

    # Machines are on a network of their own, and schedulers talk on ports of their choice.
    networking.firewall.enable = false;

    # A machine is made anew with each image, so it has no older state to be faithful to.
    system.stateVersion = lib.trivial.release;

    # The same tree must give the same image wherever it was found; flake.lock has the revision.
    system.nixos.versionSuffix = "";
    system.nixos.revision = null;
    nix.channel.enable = false;
  };
}
