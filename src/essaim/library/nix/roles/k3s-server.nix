# A machine that can be a K3s server.
{
  imports = [ ./k3s.nix ];
  services.k3s.role = "server";
}
