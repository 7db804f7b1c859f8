# The machine's identity, from a disk labelled `cidata` (cloud-init's NoCloud), at the first boot.
{
  services.cloud-init = {
    enable = true;
    network.enable = true;
    settings = {
      # Nothing else is asked: a machine that tried clouds' addresses would wait for each in vain.
      datasource_list = [
        "NoCloud"
        "None"
      ];
      users = [ ];
      # `ssh` is here and not among the later ones, where NixOS has it: the host key must be there
      # before the SSH server starts, or the first to come would be shown another one.
      cloud_init_modules = [
        "seed_random"
        "bootcmd"
        "write_files"
        "set_hostname"
        "update_hostname"
        "users_groups"
        "ssh"
      ];
      cloud_config_modules = [ "runcmd" ];
      cloud_final_modules = [
        "scripts_per_once"
        "scripts_per_boot"
        "scripts_per_instance"
        "scripts_user"
        "final_message"
      ];
    };
  };

  networking.useNetworkd = true;
  networking.useDHCP = false;
  # The network to its peers leads nowhere, and the other one may be slow: no boot waits for them.
  systemd.network.wait-online.enable = false;
}
