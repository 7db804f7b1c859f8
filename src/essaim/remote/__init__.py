"""Everything done on machines over SSH: connections, keys, roles.

Importing this package, or `ssh`, `roles` and `keyring` in it, loads neither asyncssh nor Jinja:
they are loaded when the first machine is talked to.
"""
