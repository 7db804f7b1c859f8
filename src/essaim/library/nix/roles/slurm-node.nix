# A machine that can be a SLURM node.
{ pkgs, ... }:
{
  imports = [ ./slurm.nix ];

  essaim.provides = [ "slurmd" ];
  systemd.tmpfiles.rules = [ "d /var/lib/slurm/slurmd 0755 root root -" ];

  # The node fetches its configuration from the controller, whose address a file has:
  # SLURMD_OPTIONS=--conf-server 10.77.0.2
  systemd.services.slurmd = {
    description = "SLURM node";
    wantedBy = [ "multi-user.target" ];
    after = [
      "munged.service"
      "network.target"
    ];
    unitConfig.ConditionPathExists = "/etc/essaim/slurmd.env";
    serviceConfig = {
      Type = "forking";
      PIDFile = "/run/slurmd.pid";
      EnvironmentFile = "/etc/essaim/slurmd.env";
      ExecStart = "${pkgs.slurm}/bin/slurmd $SLURMD_OPTIONS";
      # Jobs outlive a restart of the daemon.
      KillMode = "process";
      Delegate = true;
      LimitMEMLOCK = "infinity";
      Restart = "on-failure";
    };
  };
}
