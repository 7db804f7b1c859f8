"""Ask a site whether it answers: before a command begins, and while it works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from essaim.cli.output import say
from essaim.cli.tongue import in_their_language, said

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.stacks import Site

#: Seconds between two questions, and until a site that did not answer is asked again.
EVERY, AGAIN = 5.0, 2.0
#: It did not answer so often in a row: then it is away.
TIMES = 2
#: The exit code of a command that could not reach its site.
AWAY = 3


@dataclass(slots=True)
class Watched:
    """Whether the site was lost meanwhile."""

    lost: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def code(self, code: int) -> int:
        """The exit code of the command."""
        return AWAY if self.lost and code else code


@contextmanager
def watched(control: App, site: Site) -> Iterator[Watched]:
    """Stop what this process carries when its site does not answer any more.

    Nothing is lost by it: the same command goes on later.  One sentence is said, not one for each
    machine, and not after each of them was tried for minutes.
    """
    state = Watched()
    thread = threading.Thread(
        target=_watch, args=(control, site, state), name="essaim-site-watch", daemon=True
    )
    thread.start()
    try:
        yield state
    finally:
        state.ended.set()
        thread.join()


def _watch(control: App, site: Site, state: Watched) -> None:
    from essaim.model.errors import EssaimError, SiteAwayError
    from essaim.usecases.lost_machines import check_reachable

    missed, pause = 0, EVERY
    while not state.ended.wait(pause):
        try:
            check_reachable(control, site)
        except SiteAwayError as error:
            missed, pause = missed + 1, AGAIN
            if missed == TIMES and not state.ended.is_set():
                state.lost = True
                say(said("site.lost", what=in_their_language(error.what)))
                control.courier.interrupt()
                return
        except EssaimError:
            return  # whoever needs it will be told
        else:
            missed, pause = 0, EVERY
