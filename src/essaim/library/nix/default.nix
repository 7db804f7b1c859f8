# All that the flake gives, for any nixpkgs: the one that flake.lock names, or a tree at hand.
{
  nixpkgs,
  system ? "x86_64-linux"
}:
let
  # Which modules make which machine, besides what all have.
  roles = {
    generic = [ ];
    slurm-controller = [ ./roles/slurm-controller.nix ];
    slurm-node = [ ./roles/slurm-node.nix ];
    k3s-server = [ ./roles/k3s-server.nix ];
    k3s-agent = [ ./roles/k3s-agent.nix ];
    oar-server = [ ./roles/oar-server.nix ];
    oar-node = [ ./roles/oar-node.nix ];
  };

  module = role: {
    imports = [ ./modules/generic.nix ] ++ roles.${role};
    essaim.role = role;
  };

  configure =
    role:
    import (nixpkgs + "/nixos/lib/eval-config.nix") {
      inherit system;
      modules = [ (module role) ];
    };

  names = builtins.attrNames roles;
  each =
    give:
    builtins.listToAttrs (
      map (role: {
        name = role;
        value = give role;
      }) names
    );

  nixosConfigurations = each configure;
in
{
  inherit nixosConfigurations;

  # For somebody's own flake: imports = [ essaim.nixosModules.slurm-node ./mine.nix ];
  nixosModules = each module;

  packages.${system} = builtins.listToAttrs (
    map (role: {
      name = "${role}-image";
      value = nixosConfigurations.${role}.config.system.build.essaimDisk;
    }) names
  );
}
