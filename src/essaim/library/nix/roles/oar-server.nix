# A machine that can be an OAR server, once it has OAR: see oar.nix.
{
  imports = [ ./oar.nix ];

  # Empty when the machine is made: roles of it and tables come with the cluster's configuration.
  services.postgresql.enable = true;
  essaim.provides = [ "postgresql" ];
}
