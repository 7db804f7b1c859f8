"""A simulator of Proxmox VE: its API over HTTPS, its tasks, its locks, its error texts."""

from essaim_lab.simulators.proxmox.bound import lower_bound
from essaim_lab.simulators.proxmox.clock import VirtualClock, WallClock
from essaim_lab.simulators.proxmox.cluster import Cluster
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.settings import (
    NodeSettings,
    Settings,
    StorageSettings,
    TemplateSettings,
    usual,
)
from essaim_lab.simulators.proxmox.simulator import Simulator

__all__ = [
    "Cluster",
    "NodeSettings",
    "PveError",
    "Settings",
    "Simulator",
    "StorageSettings",
    "TemplateSettings",
    "VirtualClock",
    "WallClock",
    "lower_bound",
    "usual",
]
