# One disk, one partition, GRUB in the master boot record: what a BIOS such as SeaBIOS boots.
{
  boot.loader.grub = {
    enable = true;
    device = "/dev/vda";
    # Else there is nothing to see of GRUB on a machine without a screen.
    extraConfig = ''
      serial --unit=0 --speed=115200
      terminal_input --append serial
      terminal_output --append serial
    '';
  };
  boot.loader.timeout = 0;

  # The last one is /dev/console: its output is what Essaim keeps of a boot that fails.
  boot.kernelParams = [
    "console=tty0"
    "console=ttyS0,115200n8"
  ];

  # The disk of a machine may be larger than that of its image.
  boot.growPartition = true;
  fileSystems."/" = {
    device = "/dev/disk/by-label/nixos";
    fsType = "ext4";
    autoResize = true;
  };
}
