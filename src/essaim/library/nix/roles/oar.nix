# What an OAR server and an OAR node have in common.  Configuration and keys (/etc/oar,
# /var/lib/oar/.ssh) come over SSH.
#
# nixpkgs has no OAR.  This is all that OAR needs beside itself; whoever has a package of it names it
# as `essaim.oar.package`, and whoever has none is told so whenever the image is evaluated or built.
{
  config,
  lib,
  pkgs,
  ...
}:
{
  options.essaim.oar.package = lib.mkOption {
    type = lib.types.nullOr lib.types.package;
    default = null;
    example = lib.literalExpression "kapack.packages.x86_64-linux.oar";
    description = ''
      OAR itself.  The OAR team has packages in the flake github:oar-team/nur-kapack.
    '';
  };

  config = {
    warnings = lib.optional (config.essaim.oar.package == null) (
      "${config.essaim.role} holds no OAR, only what OAR needs: nixpkgs has no package of it;"
      + " set essaim.oar.package"
    );

    environment.systemPackages = [
      (pkgs.perl.withPackages (perl: [
        perl.DBI
        perl.DBDPg
        perl.JSON
        perl.YAML
        perl.SortVersions
      ]))
      pkgs.taktuk
    ] ++ lib.optional (config.essaim.oar.package != null) config.essaim.oar.package;

    users.users.oar = {
      isSystemUser = true;
      group = "oar";
      home = "/var/lib/oar";
      # It logs in from machine to machine to start jobs.
      useDefaultShell = true;
    };
    users.groups.oar = { };

    systemd.tmpfiles.rules = [
      "d /etc/oar 0755 root root -"
      "d /var/lib/oar 0755 oar oar -"
      "d /var/lib/oar/.ssh 0700 oar oar -"
      "d /run/oar 0755 oar oar -"
      "d /var/log/oar 0755 oar oar -"
    ];

    # OAR's own SSH server, through which jobs are started; once there is a configuration of it.
    systemd.services.oar-sshd = {
      description = "SSH server of OAR";
      wantedBy = [ "multi-user.target" ];
      after = [ "network.target" ];
      unitConfig.ConditionPathExists = "/etc/oar/sshd_config";
      serviceConfig = {
        ExecStart = "${pkgs.openssh}/bin/sshd -D -f /etc/oar/sshd_config";
        KillMode = "process";
        Restart = "on-failure";
      };
    };
  };
}
