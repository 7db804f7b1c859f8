"""Machines as domains of a libvirt server, which takes no more than a plain account there.

`driver.Libvirt` is what the rest of Essaim talks to.  All that is known of a machine is on the
server: a machine is there when its domain is defined, with facts about it in the metadata.  Each
has an overlay over a shared base, a seed and a log, as volumes of one storage pool.  It is reached
through a port of the server's loopback, and meets its peers in a multicast group on that loopback
or on a network that the site offers; nothing listens elsewhere.

What goes to the server goes through one OpenSSH connection, which all processes here share.
"""
