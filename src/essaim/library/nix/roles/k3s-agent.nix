# A machine that can be a K3s agent.
{
  imports = [ ./k3s.nix ];
  services.k3s.role = "agent";
}
