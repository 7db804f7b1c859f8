"""Sandbox machines with the helper on them, raised once and used by many trials."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from essaim.agent import source
from essaim.config.images import find_image
from essaim.drivers.sandbox.driver import Sandbox
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network, Size
from essaim.remote.keyring import Keyring
from essaim.remote.ssh import Remote, Target
from testcache import images

STACK = "lend"
NETWORK = Network(cidr="10.67.0.0/24")
NAMES = ("one", "two", "three")

# Everything of a lease that a machine can have, one line each.  A zombie holds nothing: its parent
# has not looked yet.
LOOK = """
getent passwd | grep '^l-' | cut -d: -f1 | sed 's/^/account /'
ls /home | grep '^l-' | sed 's/^/home /'
ls /etc/essaim/keys 2>/dev/null | sed 's/^/keys /'
ls /etc/security/limits.d 2>/dev/null | grep essaim- | sed 's/^/limits /'
ls /var/spool/cron/crontabs 2>/dev/null | sed 's/^/cron /'
find /tmp /var/tmp /dev/shm -xdev -uid +60999 -uid -61200 | sed 's/^/file /'
ps -eo uid=,stat=,comm= | awk '$1 > 60999 && $1 < 61200 && $2 !~ /^[ZX]/ {print "process " $3}'
cat /home/l-*/thesis 2>/dev/null | sed 's/^/thesis /'
true
"""

RESET = """
living() { ps -eo uid=,stat= | awk '$1 > 60999 && $1 < 61200 && $2 !~ /^[ZX]/ {print $1}'; }
while uids=$(living) && [ "$uids" ]; do  # one that was killed may live a moment more
    for uid in $uids; do pkill -KILL -U $uid; done
done
for account in $(getent passwd | grep '^l-' | cut -d: -f1); do
    crontab -u $account -r 2>/dev/null
    userdel -rf $account 2>/dev/null
    rm -rf /home/$account /etc/essaim/keys/$account /etc/security/limits.d/essaim-$account.conf
    rm -f /var/lib/essaim/messages/$account
done
find /tmp /var/tmp /dev/shm -xdev -uid +60999 -uid -61200 -delete
true
"""


class Workers:
    """The machines below a folder, as one process sees them.

    Whoever needs them in another process makes another one for the same folder.
    """

    def __init__(self, folder: Path, names: Sequence[str] = NAMES) -> None:
        self.folder = folder
        self.image = find_image("worker", str(Path(__file__).parents[2]))
        self.driver = Sandbox(folder / "sandbox", lambda wanted: images().ready(wanted))
        self.keyring = Keyring(folder / "keys")
        self.remote = Remote(self.keyring)
        self.machines = {
            name: Machine(
                name=MachineName(STACK, name),
                group="workers",
                index=number,
                address=f"10.67.0.{9 + number}",
                image="worker",
                size=Size(cores=1, memory=256),
            )
            for number, name in enumerate(names, 1)
        }

    def host_key(self, name: str) -> str:
        return self.keyring.host_public_key(MachineName(STACK, name))

    def dial(self, name: str):
        return self.driver.dial(MachineName(STACK, name), 22)

    def root(self, name: str) -> Target:
        return Target(
            name=MachineName(STACK, name),
            address=self.machines[name].address,
            host_key=self.host_key(name),
            dial=functools.partial(self.dial, name),
        )

    def service(self, name: str) -> Target:
        """The service account, under another name: a name has one connection."""
        return replace(self.root(name), name=MachineName("service", name), user="essaim")

    def up(self) -> None:
        images().build(self.image, lambda _text: None)
        self.driver.open_network(STACK, NETWORK)
        for name, machine in self.machines.items():
            seed = Seed(
                hostname=name,
                host_key=self.keyring.host_key(machine.name),
                authorized_keys=(self.keyring.user_public_key(),),
            )
            self.driver.create(machine, NETWORK, self.image, seed)
            self.driver.start(machine.name)
        for name in self.machines:
            self.remote.reach(self.root(name), within=60)
            self.sh(name, "cat >/root/agent.py", stdin=source().encode())
        key = self.keyring.user_public_key()
        install = f"python3 -I /root/agent.py install --key '{key}'"
        for _, result in self.everywhere(install):
            assert result.exit_code == 0, result.output

    def down(self) -> None:
        self.remote.close()
        self.driver.close_network(STACK)

    def sh(self, name: str, script: str, *, stdin: bytes = b"") -> str:
        result = self.remote.run(self.root(name), script, stdin=stdin, within=120)
        assert result.exit_code == 0, result.output
        return result.stdout

    def everywhere(self, script: str, names: Sequence[str] = ()):
        targets = [self.root(name) for name in names or self.machines]
        for target, result in self.remote.fan_out(targets, script, within=120):
            assert not isinstance(result, Exception), result
            yield target.name.machine, result

    def seen(self, names: Sequence[str] = ()) -> dict[str, list[str]]:
        """What there is of leases, by machine."""
        return {
            name: sorted(result.stdout.splitlines())
            for name, result in self.everywhere(LOOK, names)
        }

    def reset(self, names: Sequence[str] = ()) -> None:
        """Remove all there is of leases, in a hurry."""
        for _, result in self.everywhere(RESET, names):
            assert result.exit_code == 0, result.output


@functools.cache
def _workers(folder: Path, _process: int) -> Workers:
    return Workers(folder)


def workers_at(folder: Path) -> Workers:
    """The machines of a folder, with connections of this very process."""
    return _workers(folder, os.getpid())


@contextlib.contextmanager
def raised(folder: Path) -> Iterator[Workers]:
    """Machines for as long as a block lasts."""
    workers = workers_at(folder)
    try:
        workers.up()
        yield workers
    finally:
        workers.down()
