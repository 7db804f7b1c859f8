"""One SSH address for every lease, whichever machine holds it now.

Importing this package, or `routes` in it, loads no asyncssh: only `gateway` needs it.
"""
