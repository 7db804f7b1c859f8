"""Reaching machines and running commands there, over real SSH servers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.model.names import MachineName
from essaim.remote import pool, session
from essaim.remote.keyring import Keyring
from essaim.remote.ssh import CutOffError, Remote
from essaim_lab.computer import free_port
from remote.rig import until


@contextlib.contextmanager
def listener(serve):
    """A TCP server that gives each connection to `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def loop():
            with contextlib.suppress(OSError):
                while True:
                    serve(server.accept()[0])

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()  # the last connection has been given away


def why_not(remote, target, words, *, within):
    """Wait until that is why a machine is not reached; a busy computer may not come so far."""
    errors = []

    def said():
        with pytest.raises(TransientError) as caught:
            remote.reach(target, within=within)
        errors.append(caught.value)
        return re.search(words, str(caught.value))

    until(said)
    return errors[-1]


class TestReach:
    """R-C1: wait for SSH, and say how far a machine came when it does not."""

    def test_a_machine_that_answers(self, remote, box):
        remote.reach(box.target, within=60)
        assert remote.run(box.target, ["hostname"], within=60).stdout == "box-1\n"

    def test_nobody_listens(self, remote, box):
        target = replace(box.target, port=free_port())
        assert why_not(remote, target, r"lab/box-1: tcp at .*: refused", within=2).hint

    def test_a_dial_that_fails_is_a_missing_connection(self, remote, box):
        def dial():
            raise OSError(113, "No route to host")

        with pytest.raises(TransientError, match=r"tcp at .*: No route to host"):
            remote.reach(replace(box.target, dial=dial), within=2)

    def test_a_port_that_accepts_and_says_nothing(self, remote, box):
        held = []
        with listener(held.append) as port:
            why_not(remote, replace(box.target, port=port), "no banner", within=4)
        for sock in held:
            sock.close()

    def test_a_port_that_accepts_and_hangs_up(self, remote, box):
        with listener(lambda sock: sock.close()) as port:
            words = r"no banner .*: the connection was closed"
            why_not(remote, replace(box.target, port=port), words, within=4)

    def test_a_login_that_is_refused(self, box, tmp_path):
        stranger = Remote(Keyring(tmp_path / "other"))
        why_not(stranger, box.target, r"login refused at .*: Permission denied", within=5)
        stranger.close()

    def test_a_server_that_starts_late_is_reached_as_soon_as_it_does(self, remote, boxes):
        late = boxes[2]
        late.stop_sshd()
        with ThreadPoolExecutor(1) as threads:
            reached = threads.submit(remote.reach, late.target, within=60)
            with pytest.raises(TransientError):
                remote.run(late.target, ["true"], within=1)
            late.start_sshd()
            reached.result(60)

    def test_a_forward_that_swallows_the_first_connection(self, remote, box, monkeypatch):
        monkeypatch.setattr(pool, "FIRST_PATIENCE", 0.3)
        held = []

        def dial():
            if not held:  # accepted by a port forward, before anything listens behind it
                held.extend(socket.socketpair())
                return held[0]
            return socket.create_connection(("127.0.0.1", box.port))

        remote.reach(replace(box.target, dial=dial), within=60)
        assert held
        held[1].close()

    def test_another_host_key_is_refused_at_once_and_named(self, remote, box, keyring):
        pinned = keyring.host_public_key(MachineName("lab", "somebody-else"))
        began = time.monotonic()
        with pytest.raises(RejectedError, match=r"pinned SHA256:\S+, offered SHA256:") as caught:
            remote.reach(replace(box.target, host_key=pinned), within=120)
        assert time.monotonic() - began < 60
        assert "rebuild" in caught.value.hint
        with pytest.raises(RejectedError, match="host key"):
            remote.run(replace(box.target, host_key=pinned), ["true"], within=60)
        remote.reach(box.target, within=60)


class TestRun:
    def test_output_and_exit_code(self, remote, box):
        result = remote.run(box.target, "echo out; echo err >&2; exit 3", within=60)
        assert result.exit_code == 3
        assert result.stdout == "out\n"
        assert sorted(result.output.splitlines()) == ["err", "out"]
        assert 0 < result.seconds < 60
        assert "out" not in repr(result)

    def test_a_command_killed_by_a_signal(self, remote, box):
        assert remote.run(box.target, "kill -9 $$", within=60).exit_code == 128 + 9

    def test_input_reaches_the_command(self, remote, box):
        body = os.urandom(1_000_000)
        result = remote.run(box.target, ["wc", "-c"], stdin=body, within=60)
        assert result.stdout.split() == ["1000000"]

    def test_without_input_there_is_nothing_to_read(self, remote, box):
        assert remote.run(box.target, ["cat"], within=60).output == ""

    def test_output_comes_in_the_callers_thread_as_it_is_printed(self, remote, box):
        mark = f"/tmp/go-on-{time.monotonic_ns()}"
        seen = []

        def on_output(text):
            seen.append((text, threading.get_ident()))
            box.path(mark).touch()  # the command waits for this: nothing was held back

        script = f"echo one; until [ -e {mark} ]; do sleep 0.05; done; echo two"
        remote.run(box.target, script, within=60, on_output=on_output)
        assert "".join(text for text, _ in seen) == "one\ntwo\n"
        assert {thread for _, thread in seen} == {threading.get_ident()}

    def test_a_slow_reader_loses_nothing(self, remote, box):
        seen = []

        def on_output(text):
            if not seen:
                time.sleep(1)  # enough for the whole output to arrive, if it were let in
            seen.append(text)

        result = remote.run(box.target, "seq 1200000", within=120, on_output=on_output)
        assert result.exit_code == 0
        assert "".join(seen).splitlines()[-1] == "1200000"
        assert len("".join(seen)) > session.KEPT
        assert "more were not kept" in result.output

    def test_a_daemon_that_keeps_the_output_does_not_hold_up_its_starter(self, remote, box):
        result = remote.run(box.target, "sleep 4711 & echo started", within=60)
        assert result.output == "started\n"
        assert result.seconds < 30
        assert box.processes("sleep 4711"), "the daemon outlives the command that started it"

    def test_a_daemon_that_never_falls_silent_does_not_either(self, remote, box):
        script = "(while echo chatter; do sleep 0.1; done) & echo started"
        assert remote.run(box.target, script, within=60).output.count("started\n") == 1

    def test_a_daemon_can_still_be_interrupted(self, remote, box):
        # Shells start background commands deaf to SIGINT; ours must not be one.
        result = remote.run(box.target, "grep SigIgn /proc/self/status", within=60)
        assert int(result.stdout.split()[1], 16) & (1 << (signal.SIGINT - 1)) == 0

    def test_time_over_ends_the_command_over_there(self, remote, box):
        remote.reach(box.target, within=60)
        with pytest.raises(CutOffError, match="did not end in 12 s") as caught:
            remote.run(box.target, "echo begun; sleep 4712; echo never", within=12)
        assert caught.value.late
        assert caught.value.output == "begun\n"
        until(lambda: not box.processes("sleep 4712"))

    def test_a_caller_that_goes_away_takes_its_command_along(self, remote, box):
        def on_output(text):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            remote.run(box.target, "echo begun; sleep 4713", within=600, on_output=on_output)
        until(lambda: not box.processes("sleep 4713"))

    def test_a_lost_connection_ends_the_command_and_is_said(self, remote, box):
        def on_output(text):
            for pid in box.processes("sshd: root@notty"):
                box.enter("kill", "-9", pid)

        with pytest.raises(CutOffError, match="connection lost") as caught:
            remote.run(box.target, "echo begun; sleep 4714", within=600, on_output=on_output)
        assert not caught.value.late
        assert caught.value.output == "begun\n"
        until(lambda: not box.processes("sleep 4714"))

    def test_a_restarted_server_is_connected_to_again(self, remote, box):
        # R-C2: nobody notices that the pooled connection died meanwhile.
        for _ in range(3):
            assert remote.run(box.target, ["true"], within=60).exit_code == 0
            box.stop_sshd()
            box.start_sshd()
        assert remote.run(box.target, ["true"], within=60).exit_code == 0

    def test_a_connection_that_hangs_is_replaced(self, remote, box, monkeypatch):
        remote.reach(box.target, within=60)
        monkeypatch.setattr(session, "OPEN_WITHIN", 0.5)
        frozen = box.processes("sshd: root@notty")
        for pid in frozen:
            box.enter("kill", "-STOP", pid)
        try:
            # The machine answers to new connections only: loaded, so given a few tries.
            until(lambda: _quietly(remote, box.target))
        finally:
            for pid in frozen:
                box.enter("kill", "-KILL", pid)

    def test_a_machine_that_moved_is_followed(self, remote, boxes):
        first, second, _ = boxes
        assert remote.run(first.target, ["hostname"], within=60).stdout == "box-1\n"
        # The same name, rebuilt elsewhere with another key.
        moved = replace(second.target, name=first.name)
        assert remote.run(moved, ["hostname"], within=60).stdout == "box-2\n"

    def test_threads_share_one_connection_and_its_few_sessions(self, remote, box):
        # Asked of the server: a count of its processes sees those that are about to become others.
        words = "echo $SSH_CONNECTION; sleep 0.2"
        with ThreadPoolExecutor(30) as threads:
            jobs = [threads.submit(remote.run, box.target, words, within=120) for _ in range(30)]
            results = [job.result() for job in jobs]
        assert [result.exit_code for result in results] == [0] * 30
        # One, as a rule; a busy server that has not noticed yet that a session has ended refuses
        # the next one, and then it is asked over a new connection.
        assert len({result.stdout for result in results}) < 5

    def test_drop_and_close_leave_nothing_open(self, remote, box):
        remote.drop(box.name)
        remote.reach(box.target, within=60)
        remote.drop(box.name)
        remote.reach(box.target, within=60)
        remote.close()
        until(lambda: not box.processes("sshd: root@notty"))
        assert remote.run(box.target, ["true"], within=60).exit_code == 0
        assert threading.active_count() < 100


def _quietly(remote, target):
    try:
        return remote.run(target, ["true"], within=10).exit_code == 0
    except EssaimError:
        return False


class TestFanOut:
    def test_each_machine_answers_once_and_a_dead_one_spoils_nothing(self, remote, boxes):
        dead = replace(boxes[0].target, name=MachineName("lab", "dead"), port=free_port())
        targets = [*(box.target for box in boxes), dead]
        results = {str(t.name): r for t, r in remote.fan_out(targets, ["hostname"], within=60)}
        assert isinstance(results.pop("lab/dead"), TransientError)
        assert {name: r.stdout for name, r in results.items()} == {
            f"lab/box-{n}": f"box-{n}\n" for n in (1, 2, 3)
        }

    def test_no_more_than_width_at_a_time(self, remote, boxes):
        targets = [box.target for box in boxes] * 4
        for box in boxes:
            remote.reach(box.target, within=60)
        script = "date +%s%N; sleep 0.2; date +%s%N"
        spans = []
        for _, result in remote.fan_out(targets, script, within=60, width=2):
            spans.append(tuple(int(line) for line in result.stdout.split()))
        assert len(spans) == 12
        assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) <= 2

    def test_results_come_as_machines_finish(self, remote, boxes):
        mark = f"/tmp/let-go-{time.monotonic_ns()}"
        script = f"[ $(hostname) != box-1 ] || until [ -e {mark} ]; do sleep 0.05; done"
        seen = []
        for target, _ in remote.fan_out([box.target for box in boxes], script, within=60):
            seen.append(target.name.machine)
            if len(seen) == 2:  # the slow one can only end now
                boxes[0].path(mark).touch()
        assert seen[-1] == "box-1"

    def test_leaving_early_ends_what_still_runs(self, remote, boxes):
        script = "[ $(hostname) = box-2 ] || sleep 4715"
        for target, _ in remote.fan_out([box.target for box in boxes], script, within=600):
            assert target.name.machine == "box-2"
            break
        until(lambda: not any(box.processes("sleep 4715") for box in boxes))
