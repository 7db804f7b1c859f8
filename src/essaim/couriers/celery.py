"""The courier between processes: messages over Redis or RabbitMQ, with Celery.

A message carries the id of a run and says that it may be due.  The journal decides: a message that
is lost is sent again, one that comes twice or late finds nothing to do.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from celery import Celery  # type: ignore[import-untyped]

from essaim.couriers.following import Follower
from essaim.model.errors import EssaimError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from essaim.model.journal import Journal
    from essaim.model.runs import Event

log = logging.getLogger(__name__)

#: The one task there is.
CARRY = "essaim.carry"
#: Seconds after which a run that nobody has come for is sent again.
AGAIN = 5.0
#: Seconds between looks for due runs, at most.
LOOK_EVERY = 1.0
#: Seconds between looks at a run that somebody waits for.
CHECK_EVERY = 0.2
#: Seconds a broker has to answer.
ANSWER_WITHIN = 5.0
#: Messages are small hints; those that a broker loses are sent again.
TRANSIENT = 1

SETTINGS: dict[str, Any] = {
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_ignore_result": True,
    "result_backend": None,
    "task_acks_late": False,  # the journal is the truth: a message need not outlive its reader
    "worker_prefetch_multiplier": 1,
    "task_default_queue": "essaim.any",
    "task_default_delivery_mode": TRANSIENT,
    "task_publish_retry": False,
    "broker_connection_timeout": ANSWER_WITHIN,
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_heartbeat": 30,
    "worker_send_task_events": True,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
    # Steps have time limits of their own; a thread cannot be given one from outside.
    "task_time_limit": None,
    "task_soft_time_limit": None,
}
REDIS: dict[str, Any] = {
    "socket_connect_timeout": ANSWER_WITHIN,
    "socket_timeout": 30.0,
    "socket_keepalive": True,
    "health_check_interval": 25,
    "visibility_timeout": 3600,
}
BROKERS = ("redis", "rediss", "amqp", "amqps")


def celery_app(broker_url: str) -> Celery:
    """Make the Celery application of a broker; nothing is called upon yet."""
    scheme = broker_url.partition("://")[0]
    if scheme not in BROKERS:
        raise SetupError(
            f"ESSAIM_BROKER: {scheme or 'nothing'} is not a broker Essaim knows",
            hint="use redis://host:6379/0 or amqp://user:password@host:5672//",
        )
    made = Celery("essaim", broker=broker_url, set_as_current=False)
    made.conf.update(SETTINGS)
    if scheme.startswith("redis"):
        made.conf.broker_transport_options = REDIS
    return made


def queue_of(site: str) -> str:
    """Name the queue that the workers of a site read; those of no site read `essaim.any`."""
    return f"essaim.site.{site}" if site else "essaim.any"


class CeleryCourier:
    """Tells workers of due runs.  Nothing it is asked fails because the broker is away.

    `tell` hears what happens to a run that is waited for, as the journal has it; `served` names
    the sites that have a live worker.
    """

    def __init__(
        self,
        journal: Journal,
        broker_url: str,
        *,
        tell: Callable[[Event], None] = lambda _event: None,
        served: Callable[[], Collection[str]] | None = None,
        again: float = AGAIN,
    ) -> None:
        self.app = celery_app(broker_url)
        self._journal = journal
        self._tell = tell
        self._served = served
        self._again = again
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._halted = threading.Event()
        self._thread: threading.Thread | None = None
        self._sweeps = False
        self._trouble = ""

    def wake(self, run_id: str | None = None) -> None:  # noqa: ARG002 - the journal knows which
        """Tell workers of due runs soon, from a thread of its own.  It never raises."""
        self._wanted.set()
        if self._thread is None:
            self._start()

    def sweep(self) -> None:
        """From now on, tell workers whenever a run becomes due, also when nobody says `wake`."""
        self._sweeps = True
        self.wake()

    def dispatch(self) -> float:
        """Tell workers of the runs that are due now; return the seconds until more may be."""
        found = self._journal.outbox(again=self._again)
        for site, runs in found.fresh.items():
            self._send(site, runs)
        for site, runs in found.stale.items():
            # What lies in the queue is not lost: whoever reads it is only busy.
            if not self._lying(queue_of(site)):
                self._send(site, runs)
        return LOOK_EVERY if found.next_due is None else min(found.next_due, LOOK_EVERY)

    def wait(self, until: str | Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until workers have brought a run to its end, or until a condition holds.

        Nothing is carried here.  False after `timeout` seconds, or after `interrupt`: the run is
        in the journal all the same, and workers go on with it.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        done = self._follow(until) if isinstance(until, str) else until
        self.wake()
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or self._halted.wait(max(0.0, min(left, CHECK_EVERY))):
                return False
        return True

    def interrupt(self) -> None:
        """Let whoever waits go."""
        self._halted.set()
        self._wanted.set()

    def stop(self, *, hand_back: bool = True, grace: float = 30.0) -> bool:
        """End the thread and the connections; what was not sent is sent by others."""
        self.interrupt()
        thread = self._thread
        if thread is not None:
            thread.join(grace if hand_back else 0.0)
        ended = thread is None or not thread.is_alive()
        if ended:
            self.app.close()
        return ended

    def _follow(self, run: str) -> Callable[[], bool]:
        follower = Follower(self._journal, run, self._tell, self._served)
        return follower.look

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._halted.is_set():
                self._thread = threading.Thread(
                    target=self._loop, name="essaim-sender", daemon=True
                )
                self._thread.start()

    def _loop(self) -> None:
        left: float | None = None
        while not self._halted.is_set():
            self._wanted.wait(left)
            self._wanted.clear()
            left = self._look()
            if not self._sweeps:
                left = None

    def _look(self) -> float:
        try:
            return self.dispatch()
        except EssaimError as error:
            self._complain("the journal", error.what)
        except Exception:
            # Whatever it is, the next look may get through; and another process looks too.
            log.exception("due runs could not be sent")
        return LOOK_EVERY

    def _send(self, site: str, runs: Iterable[str]) -> None:
        queue = queue_of(site)
        try:
            with self.app.producer_pool.acquire(block=True) as producer:
                for run in runs:
                    self.app.send_task(CARRY, (run,), queue=queue, producer=producer)
        except Exception as error:  # noqa: BLE001 - each transport has errors of its own
            # Not sent: as nobody will have come for them, they are sent again before long.
            self._complain("the broker", f"broker {self.app.connection().as_uri()}: {error}")
        else:
            self._trouble = ""

    def _lying(self, queue: str) -> int:
        """Count the messages in a queue; none when it cannot be told."""
        try:
            with self.app.pool.acquire(block=True) as connection, connection.channel() as channel:
                return int(channel.queue_declare(queue=queue, passive=True).message_count)
        except Exception:  # noqa: BLE001 - an empty queue of Redis is no queue, and an error
            return 0

    def _complain(self, of: str, what: str) -> None:
        # Said once, not every second: it is tried again until it works or somebody stops it.
        if of != self._trouble:
            log.warning("%s; trying again", what)
        self._trouble = of


def __getattr__(name: str) -> Celery:
    """Be what `celery -A essaim.couriers.celery` looks for: an application, of ESSAIM_BROKER."""
    if name != "app":
        raise AttributeError(name)
    return celery_app(os.environ.get("ESSAIM_BROKER", ""))
