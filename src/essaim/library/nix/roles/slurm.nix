# What a SLURM controller and a SLURM node have in common: programs, accounts and folders.  The
# cluster's configuration (/etc/slurm) and its key (/etc/munge/munge.key) come over SSH.
#
# NixOS has a module for SLURM.  It writes the configuration into the store, where it would be the
# same for every cluster made of the image; so this is the package alone, which reads /etc/slurm.
{ config, pkgs, ... }:
{
  environment.systemPackages = [
    pkgs.slurm
    pkgs.munge
  ];
  essaim.provides = [
    "slurm-client"
    "munge"
  ];

  # The same number in every image: SLURM compares numbers, not names.
  users.users.slurm = {
    isSystemUser = true;
    group = "slurm";
    uid = config.ids.uids.slurm;
  };
  users.groups.slurm.gid = config.ids.gids.slurm;
  users.users.munge = {
    isSystemUser = true;
    group = "munge";
  };
  users.groups.munge = { };

  systemd.tmpfiles.rules = [
    "d /etc/munge 0700 munge munge -"
    "d /var/lib/munge 0711 munge munge -"
    "d /var/log/munge 0700 munge munge -"
    "d /run/munge 0755 munge munge -"
    "d /etc/slurm 0755 root root -"
    "d /var/lib/slurm 0755 slurm slurm -"
    "d /var/log/slurm 0755 slurm slurm -"
  ];

  # Until a role has brought the key there is nothing to start; at later boots there is.
  systemd.services.munged = {
    description = "MUNGE";
    wantedBy = [ "multi-user.target" ];
    unitConfig.ConditionPathExists = "/etc/munge/munge.key";
    serviceConfig = {
      Type = "forking";
      User = "munge";
      Group = "munge";
      RuntimeDirectory = "munge";
      RuntimeDirectoryPreserve = true;
      PIDFile = "/run/munge/munged.pid";
      ExecStart = "${pkgs.munge}/bin/munged";
      Restart = "on-failure";
    };
  };
}
