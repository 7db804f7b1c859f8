{
  description = "Generic NixOS machines for Essaim: software, and nobody's identity or configuration";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.05";

  outputs = { self, nixpkgs }: import ./default.nix { inherit nixpkgs; };
}
