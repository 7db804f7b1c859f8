# What Essaim's roles expect of a machine and NixOS has elsewhere, or under another name.
{
  config,
  lib,
  pkgs,
  ...
}:
{
  options.essaim.provides = lib.mkOption {
    type = lib.types.listOf lib.types.str;
    default = [ ];
    example = [ "slurmd" ];
    description = ''
      Debian packages whose programs this machine has already.  A role that asks for one of them is
      content; nothing can be installed here later.
    '';
  };

  config = {
    environment.etc."essaim/provides".text = lib.concatMapStrings (name: "${name}\n") (
      lib.sort lib.lessThan config.essaim.provides
    );

    essaim.provides = [
      "openssh-server"
      "iproute2"
      "iputils-ping"
      "procps"
      "less"
      "python3"
    ];
    environment.systemPackages = [
      pkgs.iputils
      pkgs.python3 # for Ansible
    ];

    # Roles put programs there.
    environment.sessionVariables.PATH = [
      "/usr/local/sbin"
      "/usr/local/bin"
    ];
    # Roles make accounts whose shell this is.
    systemd.tmpfiles.rules = [
      "d /usr/local/bin 0755 root root -"
      "d /usr/local/sbin 0755 root root -"
      "L+ /bin/bash - - - - /run/current-system/sw/bin/bash"
    ];
  };
}
