# A machine that can be an OAR node, once it has OAR: see oar.nix.
{ pkgs, ... }:
{
  imports = [ ./oar.nix ];

  # A node asks the server's database whose job it serves.
  environment.systemPackages = [ pkgs.postgresql ];
  essaim.provides = [ "postgresql-client" ];
}
