"""The deployment of `deploy/` on this computer, without a registry: up, demonstration, down.

Images are made from Debian packages, as the machines of a sandbox are, and given to a Docker engine
of its own.
"""
