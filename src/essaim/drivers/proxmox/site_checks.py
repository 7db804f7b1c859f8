"""What the driver says of its site, and how it gives machines up that are lost with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from essaim.drivers.checks import check_name
from essaim.drivers.doctor import Check
from essaim.drivers.proxmox.machines import Machines
from essaim.drivers.proxmox.settings import Settings
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine


class SiteChecks:
    """Reachable, ChecksMachines, Forgets and the doctor, for a driver with its machines."""

    settings: Settings
    machines: Machines

    def check_reachable(self) -> None:
        """SiteAwayError, within some seconds, when the cluster does not answer or refuses us."""
        from essaim.drivers.proxmox import reachability  # noqa: PLC0415 - seldom needed

        reachability.check_reachable(self.settings)

    def check_machines(self, image: Image, machines: Sequence[Machine]) -> None:
        """RejectedError when the site lacks what one of these machines needs; changes nothing."""
        check = self.machines.making.inventory.check
        with self.machines.meaning(f"looking for what machines of image {image.name} need"):
            for machine in machines:
                check(image, machine.labels)

    def doctor(self) -> list[Check]:
        """Look at everything machines need there; changes nothing."""
        return self.examine(())

    def examine(self, images: Sequence[Image]) -> list[Check]:
        """Do as `doctor` does, for machines that are made from these images."""
        from essaim.drivers.proxmox import doctor  # noqa: PLC0415 - seldom needed

        return doctor.doctor(self.settings, images)

    def left_behind(self, name: MachineName) -> Mapping[str, str]:
        """What may be left of a machine at the site, for a person to delete by hand."""
        check_name(name)
        holdings = self.machines.holdings
        numbers = [holdings.id_of(name)]
        numbers += [number for number, whose in holdings.aside().items() if whose == name]
        ids = [str(number) for number in numbers if number is not None]
        return {"vmid": ", ".join(ids)} if ids else {}

    def forget(self, name: MachineName) -> None:
        """Release all that is reserved for a machine.  Nothing is changed at the site."""
        check_name(name)
        holdings = self.machines.holdings
        for number, whose in holdings.aside().items():
            if whose == name:
                holdings.forget_aside(name, number)
        holdings.release(name)
