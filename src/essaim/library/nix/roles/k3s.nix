# What a K3s server and a K3s agent have in common.  Addresses and the cluster's token come over SSH:
# k3s starts once there is /etc/essaim/k3s.yaml, in which a `token-file` may be named.
{ config, ... }:
{
  services.k3s = {
    enable = true;
    # A string, not a path: a path would be copied into the store, for all to read.
    configPath = "/etc/essaim/k3s.yaml";
    # The containers of K3s itself: a locked-down server may have no way to a registry.
    images = [ config.services.k3s.package.airgapImages ];
  };
  systemd.services.k3s.unitConfig.ConditionPathExists = "/etc/essaim/k3s.yaml";

  essaim.provides = [ "k3s" ];
}
