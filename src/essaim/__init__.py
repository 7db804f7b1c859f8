"""Essaim: a self-hosted control plane for teaching and research labs."""

__version__ = "0.2.0"
