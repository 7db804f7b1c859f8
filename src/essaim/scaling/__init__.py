"""Adds and removes replicas of a service: containers of Docker, or processes of this computer."""
