"""What a server says about itself and about the account, in one answer."""

from __future__ import annotations

from collections.abc import Mapping

from essaim.drivers.libvirt.connection import Connection

#: Asked as the account, of any Unix with /proc.  Prints `key=value` lines.
_PROBE = b"""
PATH=$PATH:/usr/sbin:/sbin:/usr/libexec:/usr/local/sbin
echo "user=$(id -un)"
echo "system=$(. /etc/os-release; echo $ID $ID_LIKE)"
for tool in libvirtd virtqemud qemu-img nc virt-ssh-helper; do
  echo "$tool=$(command -v $tool)"
done
if [ -e /dev/kvm ]; then echo "kvm=$(ls -l /dev/kvm)"; fi
if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then echo "kvm_open=yes"; fi
if [ -w /run/libvirt/libvirt-sock ]; then echo "system_open=yes"; fi
place=${1:-$HOME}
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
echo "place=$place"
echo "free=$(df -Pk "$place" | awk 'NR == 2 {print $4}')"
echo "memory=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)"
echo "processes=$(ulimit -u)"
listening='$4 == "0A" {split($2, part, ":"); printf "%s ", part[2]}'
echo "taken=$(awk "$listening" /proc/net/tcp /proc/net/tcp6)"
"""

#: The packages of an administrator who uses apt-get, and of one who uses dnf.
_PACKAGES = {
    "libvirt": (
        "libvirt-daemon libvirt-daemon-driver-qemu qemu-system-x86 qemu-utils",
        "libvirt-daemon-driver-qemu libvirt-daemon-driver-storage-core qemu-kvm qemu-img",
    ),
    "qemu": ("qemu-system-x86", "qemu-kvm"),
    "qemu-img": ("qemu-utils", "qemu-img"),
    "nc": ("netcat-openbsd", "nmap-ncat"),
}


def ask(connection: Connection) -> dict[str, str]:
    """Ask the server; what it does not know, or does not let the account ask, is left out.

    Our errors when it cannot be reached or does not let the account in.
    """
    done = connection.ssh("sh", "-s", "--", connection.settings.pool_path, input=_PROBE)
    lines = done.stdout.decode(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key: value.strip() for key, _, value in pairs if value.strip()}


def taken(facts: Mapping[str, str]) -> set[int]:
    """The ports somebody listens on there."""
    return {int(word, 16) for word in facts.get("taken", "").split()}


def install(facts: Mapping[str, str], what: str) -> str:
    """The command that an administrator there needs."""
    apt, dnf = _PACKAGES[what]
    if any(word in facts.get("system", "") for word in ("rhel", "fedora")):
        return f"ask for\nsudo dnf install {dnf}"
    return f"ask for\nsudo apt-get install {apt}"
