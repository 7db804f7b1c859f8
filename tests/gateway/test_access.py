"""Who comes in, and what those who do not can learn."""

from __future__ import annotations

import os
import socket
import subprocess
import time

import pytest

from essaim.gateway.attempts import Attempts
from essaim.model.errors import SetupError, TransientError
from gateway.rig import ACCOUNT, finish, new_key, public, run, running, wait_for


def seen(done):
    """What a client that was refused could tell apart, but for the name it gave."""
    lines = done.stderr.decode().splitlines()
    return done.returncode, [line.replace("l-nobody00", ACCOUNT) for line in lines]


def test_wrong_key_unknown_lease_and_expired_lease_look_the_same(fleet, tmp_path):
    stranger = new_key(tmp_path / "stranger")
    wrong = seen(fleet.ssh("true", key=stranger))
    unknown = seen(fleet.ssh("true", user="l-nobody00"))
    fleet.book.change(expires_at=time.time() - 1)
    expired = seen(fleet.ssh("true"))
    assert wrong == unknown == expired
    assert wrong[0] == 255
    assert "Permission denied (publickey)" in wrong[1][-1]
    assert not fleet.book.sessions


def test_a_name_costs_one_question_whether_it_is_known_or_not(fleet, tmp_path):
    asked = []
    real = fleet.book.lease
    fleet.book.lease = lambda account: asked.append(account) or real(account)
    fleet.ssh("true", key=new_key(tmp_path / "stranger"))
    fleet.ssh("true", user="l-nobody00")
    assert asked == [ACCOUNT, "l-nobody00"]


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "hostbased", "none"])
def test_only_keys_are_accepted(fleet, method):
    done = fleet.ssh("true", PreferredAuthentications=method)
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr


def test_one_of_several_keys_is_enough(fleet, tmp_path):
    other = new_key(tmp_path / "other")
    fleet.book.change(keys=("not a key", public(other), public(fleet.client_key)))
    assert fleet.ssh("echo in", key=other).stdout == b"in\n"
    assert fleet.ssh("echo in").stdout == b"in\n"


def test_a_control_plane_that_does_not_answer_lets_nobody_in(fleet):
    def down(_account):
        raise ConnectionError("the database is gone")

    fleet.book.lease = down
    assert b"Permission denied" in fleet.ssh("true").stderr


def test_a_session_that_cannot_be_recorded_does_not_begin(fleet, caplog):
    def full(_session):
        raise OSError("disk full")

    fleet.book.opened = full
    done = fleet.ssh("echo in")
    assert (done.returncode, done.stdout) == (255, b"")
    assert b"essaim: the gateway cannot do this now: try again" in done.stderr
    assert "disk full" in caplog.text


def test_a_lease_without_a_machine_says_so(empty_fleet):
    empty_fleet.lease(node="", waits="moving")
    with running(empty_fleet.make_gateway(patience=0)):
        done = empty_fleet.ssh("true")
        assert done.returncode == 255
        assert b"another is being prepared" in done.stderr
        wait_for(empty_fleet.book.all_closed, "the refusal is recorded")
    (session,) = empty_fleet.book.sessions.values()
    assert "another is being prepared" in session.refused


def test_a_machine_that_is_not_the_pinned_one_is_refused_and_recorded(fleet, tmp_path):
    fleet.book.change(host_key=public(new_key(tmp_path / "other")))
    done = fleet.ssh("echo in")
    assert (done.returncode, done.stdout) == (255, b"")
    assert b"did not prove who it is" in done.stderr
    assert b"SHA256" not in done.stderr
    wait_for(fleet.book.all_closed, "the refusal is recorded")
    (session,) = fleet.book.sessions.values()
    assert "the host key is not this machine's: pinned SHA256:" in session.refused
    assert session.node == "m1"


def test_a_machine_that_does_not_answer_is_told_and_recorded(fleet):
    fleet.book.change(port=9)
    done = fleet.ssh("true")
    assert done.returncode == 255
    assert b"cannot be reached now: try again" in done.stderr
    wait_for(fleet.book.all_closed, "the refusal is recorded")
    assert all(session.refused for session in fleet.book.sessions.values())


def test_the_banner_is_shown_to_everybody(empty_fleet):
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(banner="Only for members of the lab.\n")):
        assert b"Only for members" in empty_fleet.ssh("true").stderr
        assert b"Only for members" in empty_fleet.ssh("true", user="l-nobody00").stderr


def test_many_failures_from_one_address_close_the_door_for_a_while(empty_fleet, tmp_path):
    stranger = new_key(tmp_path / "stranger")
    now = [0.0]
    attempts = Attempts(3, every=10.0, clock=lambda: now[0])
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(attempts=attempts)):
        for _ in range(3):
            assert b"Permission denied" in empty_fleet.ssh("true", key=stranger).stderr
        shut = empty_fleet.ssh("true")
        assert shut.returncode == 255
        assert b"Permission denied" not in shut.stderr
        now[0] += 10.0
        assert empty_fleet.ssh("echo in").stdout == b"in\n"


def test_an_agent_full_of_keys_is_forgiven_once_the_right_one_is_shown(empty_fleet, tmp_path):
    others = [new_key(tmp_path / f"key-{number}") for number in range(4)]
    flags = [word for key in others for word in ("-i", str(key))]
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(attempts=Attempts(6, every=1e9))):
        # Command line keys come before those of the options.
        words = empty_fleet.words("echo in")
        words[1:1] = flags
        for _ in range(4):
            assert run(words).stdout == b"in\n"


def test_one_connection_may_not_try_keys_for_ever(fleet, tmp_path):
    keys = [new_key(tmp_path / f"key-{number}") for number in range(12)]
    words = fleet.words("true", user="l-nobody00")
    words[1:1] = [word for key in keys for word in ("-i", str(key))]
    assert b"too many keys tried" in run(words).stderr


def test_a_full_gateway_says_so(empty_fleet):
    empty_fleet.lease()
    with running(empty_fleet.make_gateway(max_sessions=1)):
        first = empty_fleet.start("cat")
        wait_for(lambda: empty_fleet.book.sessions, "the first is in")
        second = empty_fleet.ssh("true")
        assert b"the gateway is full" in second.stderr
        assert finish(first)[0] == 0


def test_agent_and_x11_forwarding_are_not_passed_on(fleet, tmp_path):
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", f"/tmp/agent-{os.getpid()}"], stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: os.path.exists(f"/tmp/agent-{os.getpid()}"), "the agent is there")
        words = fleet.words(
            "echo [$SSH_AUTH_SOCK][$DISPLAY]", flags=["-A", "-X"],
            IdentityAgent=f"/tmp/agent-{os.getpid()}",
        )  # fmt: skip
        given = {**os.environ, "DISPLAY": "127.0.0.1:7"}
        done = subprocess.run(words, env=given, capture_output=True, timeout=60, check=False)
    finally:
        agent.terminate()
        agent.wait()
    assert done.stdout == b"[][]\n", done.stderr


def test_the_host_key_is_the_owners_alone_and_kept_over_a_restart(empty_fleet):
    empty_fleet.lease()
    path = empty_fleet.place / "gateway" / "host_key"
    with running(empty_fleet.make_gateway()):
        assert empty_fleet.ssh("echo in").stdout == b"in\n"
        shown = empty_fleet.gateway.host_key()
    before = path.read_bytes()
    assert (empty_fleet.place / "known_hosts").read_text().startswith(f"gateway {shown}")
    assert path.stat().st_mode & 0o777 == 0o600
    # The known_hosts line was written before the restart.
    with running(empty_fleet.make_gateway()):
        assert empty_fleet.ssh("echo in").stdout == b"in\n"
    assert path.read_bytes() == before


def test_a_gateway_that_does_not_run_has_nothing_to_end_and_leads_nowhere(empty_fleet):
    gateway = empty_fleet.make_gateway()
    gateway.cut(ACCOUNT)
    gateway.drop("n-1")
    assert gateway.tunnelled() == []
    with pytest.raises(TransientError, match="not running"):
        gateway.dial("n-1")


def test_a_machine_without_elliptic_curves_is_not_talked_to(fleet):
    log = "/run/without-curves.log"
    fleet.sshd(0, "KexAlgorithms=diffie-hellman-group14-sha256", "Port=2023", log=log)
    fleet.book.change(port=2023)
    done = fleet.ssh("echo in")
    assert (done.returncode, done.stdout) == (255, b"")
    # Whoever notices first hangs up, and the other may see no more than that.
    said = done.stderr.decode() + fleet.root(0, f"cat {log}")
    assert "no matching key exchange" in said.lower()


def test_a_taken_port_is_explained(empty_fleet):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gateway = empty_fleet.make_gateway(port=taken.getsockname()[1])
        with pytest.raises(SetupError, match="the gateway cannot listen"), running(gateway):
            pass
