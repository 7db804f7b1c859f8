"""Completion for bash, zsh and fish: commands, stacks, machines, leases, rosters, keys."""
