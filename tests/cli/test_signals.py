"""Signals are acted upon, whatever the program is doing when they come."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The main thread holds the lock that the action needs, as an Event does when a wait for it begins.
BUSY = """
import signal, threading
from essaim.cli.signals import acting

lock, done = threading.Lock(), threading.Event()

def act():
    with lock:
        done.set()

with acting(act, signal.SIGTERM):
    with lock:
        signal.raise_signal(signal.SIGTERM)
    assert done.wait(60)
    done.clear()
    signal.raise_signal(signal.SIGTERM)
    assert done.wait(60)
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print("all of it")
"""

#: The main thread waits, and the system gives the signal to another thread.
ELSEWHERE = """
import signal, threading
from essaim.cli.signals import acting

done, over = threading.Event(), threading.Event()
other = threading.Thread(target=over.wait)
other.start()
with acting(done.set, signal.SIGTERM):
    threading.Timer(0.5, signal.pthread_kill, (other.ident, signal.SIGTERM)).start()
    done.wait()
over.set()
print("all of it")
"""

ONCE = """
import signal, threading
from essaim.cli.signals import acting

done = threading.Event()
with acting(done.set, signal.SIGINT, once=True):
    signal.raise_signal(signal.SIGINT)
    assert done.wait(60)
    print("all of it", flush=True)
    signal.raise_signal(signal.SIGINT)
    print("and more")
"""

#: The main thread waits and has not come to its handler when the second one comes.
TWICE = """
import os, signal, threading
from essaim.cli.signals import acting

read, write = os.pipe()
done = threading.Event()

def other():
    os.read(read, 1)  # the main thread writes, and more than the pipe holds: it stays there
    os.kill(os.getpid(), signal.SIGINT)
    assert done.wait(60)
    print("all of it", flush=True)
    os.kill(os.getpid(), signal.SIGINT)

with acting(done.set, signal.SIGINT, once=True):
    # The system gives it to the thread that acts, and nothing wakes this one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=other).start()
    os.write(write, bytes(1 << 24))
    print("and more")
"""


@pytest.mark.parametrize(("program", "code"), [(BUSY, 0), (ELSEWHERE, 0), (ONCE, -2), (TWICE, 130)])
def test_a_signal_is_acted_upon(program, code):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (code, "all of it\n"), done.stderr
