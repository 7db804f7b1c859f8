# A machine that can be a SLURM controller.
{ pkgs, ... }:
{
  imports = [ ./slurm.nix ];

  essaim.provides = [ "slurmctld" ];
  systemd.tmpfiles.rules = [ "d /var/lib/slurm/slurmctld 0755 slurm slurm -" ];

  systemd.services.slurmctld = {
    description = "SLURM controller";
    wantedBy = [ "multi-user.target" ];
    after = [
      "munged.service"
      "network.target"
    ];
    unitConfig.ConditionPathExists = "/etc/slurm/slurm.conf";
    serviceConfig = {
      Type = "forking";
      PIDFile = "/run/slurmctld.pid";
      ExecStart = "${pkgs.slurm}/bin/slurmctld";
      Restart = "on-failure";
    };
  };
}
