"""Machines as virtual machines and containers of a Proxmox VE cluster.

`driver.Proxmox` is what the rest of Essaim talks to.  A machine has a number (VMID) that is
reserved in our store before anything is asked for, so that whoever comes after a killed process
finds what it began.  It is there once it carries the tags of this control plane, which are the last
thing it is given; all that is known of it stands in its tags, its description and the reservations.

What takes long is a task of the cluster.  The `clerk` of each process begins those that only so
many may do at once, looks after all of them with one listing, and learns how long they take.
"""
