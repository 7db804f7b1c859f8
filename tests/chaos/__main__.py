"""`make chaos`: a deployment under load, while everything that can break breaks.

Prints what was broken how often, what clients were told, and every promise that did not hold;
exit code 0 only when all of them did.  The same seed breaks the same things in the same order.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from chaos import checks
from chaos.faults import Faults
from chaos.history import History
from chaos.load import Applier, Person
from chaos.plane import Plane, prepare
from chaos.schedule import kinds, plan
from chaos.servers import Server
from chaos.watch import Watch

MACHINES, PEOPLE = 6, 4
INTERVAL = 2.0
#: How long it may take until everything is as it should be, once nothing breaks any more.
SETTLE = 180.0
SHOWN = 60


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Trial:
    """One run: a deployment, a load, faults, and a verdict."""

    def __init__(self, asked: argparse.Namespace, place: Path, database: Server) -> None:
        self.asked, self.place = asked, place
        self.history = History(place / "history.jsonl")
        self.wrong: list[str] = []
        self.plane = Plane(place, database, INTERVAL)
        self.people: list[Person] = []

    def blame(self, text: str) -> None:
        """Note a broken promise, once."""
        if text not in self.wrong:
            self.wrong.append(text)
            self.history.note("wrong", text=text)
            say(f"  ✗ {text}")

    def play(self) -> None:
        asked, plane = self.asked, self.plane
        plane.begin(MACHINES, asked.broker)
        faults = plan(asked.seed, asked.minutes * 60, kinds(tuple(plane.machines)))
        self.faults = Faults(plane, faults, self.history, asked.seed)
        self.watch = Watch(plane, self.blame)
        self.applier = Applier(plane, self.history)
        for number in range(PEOPLE):
            self.people.append(Person(plane, f"person{number}", self.history, asked.seed + number))
        for person in self.people:
            person.sign_up()
        say(f"{len(faults)} faults over {asked.minutes:g} minutes begin.")
        for thread in (*self.people, self.applier, self.watch):
            thread.start()
        teller = threading.Thread(target=self._tell, daemon=True)
        self.over = threading.Event()
        teller.start()
        try:
            self.faults.play(self.over)
        finally:
            self.over.set()
            for thread in (*self.people, self.applier):
                thread.stop()
        self.settle()

    def _tell(self) -> None:
        while not self.over.wait(30):
            done = Counter(line["what"] for line in self.history.all())
            say(f"  {sum(self.faults.counts.values()):3d} faults, {done['rented']} rented, "
                f"{done['released']} released, {done['applied']} applies, "
                f"{done['no answer'] + done['answer']} answers missing or refused")  # fmt: skip

    # -- afterwards -------------------------------------------------------------------------------

    def settle(self) -> None:
        """All is mended: everything comes to rest, and every promise is looked at."""
        say("All is mended; everything has to come to rest.")
        self._all([f"a fault could not be injected: {text}" for text in self.faults.failed])
        self._end_load()
        self._rest()
        for person in self.people:
            if person.kept is not None:
                self._still_there(person)
        self._rest()
        self._all(self._messages())
        self.watch.stop()

    def _end_load(self) -> None:
        """Everybody is answered, and a stack can be applied and removed."""
        for thread in (*self.people, self.applier):
            thread.join(SETTLE)
            if thread.is_alive():
                self.blame(f"{thread.name} is not answered {SETTLE:.0f} s after all was mended")
        self._all([person.broken for person in self.people if person.broken])
        if code := self.applier.apply(2, within=SETTLE):
            self.blame(f"a stack could not be applied when all was mended: exit {code}")
        if code := self.applier.remove(within=SETTLE):
            self.blame(f"the stack could not be taken down: exit {code}")

    def _rest(self) -> None:
        """Nothing is on its way any more, and every promise was kept."""
        self._all(self.watch.until(checks.idle, SETTLE))
        self._promises()

    def _still_there(self, person: Person) -> None:
        """What somebody still has, they can use, and give back."""
        assert person.kept is not None
        deadline = time.monotonic() + SETTLE
        while (code := person.ssh(person.kept, "true")) and time.monotonic() < deadline:
            time.sleep(1)
        if code:
            self.blame(f"{person.kept} is active and lets nobody in: exit {code}")
        person.release(person.kept)

    def _promises(self) -> None:
        history = self.history
        seen = self.watch.look()
        if seen is None:
            self.blame("the database cannot be read")
            return
        self._all(checks.two_holders(seen))
        self._all(checks.forgotten(seen, history.all("rented"), history.all("released")))
        self._all(checks.shortened(seen, history.all("extended")))
        accounts = {name: self.plane.seen_accounts(name) for name in self.plane.machines}
        self._all(checks.residue(seen, accounts))

    def _messages(self) -> list[str]:
        """What lies in the broker's queues: nothing, after a while."""
        assert self.plane.broker is not None
        deadline = time.monotonic() + 60
        while left := self.plane.broker.messages():
            if time.monotonic() > deadline:
                return [f"{count} messages are left in {queue}" for queue, count in left.items()]
            time.sleep(1)
        return []

    def _all(self, found: list[str]) -> None:
        for each in found:
            self.blame(each)

    def report(self) -> None:
        said = Counter(line["what"] for line in self.history.all())
        logins = Counter(line["code"] for line in self.history.all("login"))
        applies = Counter(line["code"] for line in self.history.all("applied"))
        say(f"\n{self.asked.database} + {self.asked.broker}, seed {self.asked.seed}")
        for name, count in sorted(self.faults.counts.items()):
            say(f"  {count:4d} of {name}")
        say(f"  {sum(self.faults.counts.values()):4d} faults")
        say(f"  {said['rented']} leases granted or queued, {said['active']} seen active, "
            f"{said['released']} released, {said['extended']} extensions")  # fmt: skip
        say(f"  {said['no answer']} requests without an answer, {said['answer']} refused for now;"
            " each was asked again")  # fmt: skip
        say(f"  {logins[0]} of {logins.total()} logins, {applies[0]} of {applies.total()} applies"
            " succeeded while things broke")  # fmt: skip
        say(f"  {self.watch.looks} looks at the database, {self.watch.asked} at machines")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--database", choices=("mariadb", "postgresql"), default="mariadb")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="essaim-chaos-"))
    say(f"{asked.database} + {asked.broker}, seed {asked.seed}; logs in {place}")
    place.chmod(0o755)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    prepare(asked.broker)
    database = Server(asked.database, place / "database")
    with contextlib.ExitStack() as stack:
        stack.callback(database.close)
        database.make()
        trial = Trial(asked, place, database)
        stack.callback(trial.plane.close)
        trial.play()
        trial.report()
    if trial.wrong:
        say(f"\n{len(trial.wrong)} promises did not hold (seed {asked.seed}, logs in {place}):")
        for each in trial.wrong:
            say(f"  ✗ {each}")
        say(f"the end of {trial.history.path}:\n{trial.history.tail(SHOWN)}")
        return 1
    say("every promise held")
    if not asked.keep:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
