"""Ansible's output is understood, whatever its version puts around it."""

from __future__ import annotations

import pytest

from essaim.remote.playlog import PlayLog, TaskResult


def read(text):
    log = PlayLog()
    events = [event for line in text.strip().splitlines() if (event := log.read(f"{line}\n"))]
    return log, events


def test_tasks_and_results():
    log, events = read(
        """
PLAY [all] *****
TASK [Gathering Facts] ****
ok: [one]
TASK [a [b] c] ****
changed: [one] => {"changed": true, "rc": 0, "stdout": "out", "stderr": "err"}
ok: [two -> localhost] => {"changed": false, "msg": ["x"]}
skipping: [three]
RUNNING HANDLER [restart] ***
changed: [one]
PLAY RECAP ***
"""
    )
    assert [event for event in events if isinstance(event, str)] == [
        "Gathering Facts",
        "a [b] c",
        "restart",
    ]
    results = [event for event in events if isinstance(event, TaskResult)]
    assert [(r.task, r.host, r.output) for r in results] == [
        ("a [b] c", "one", "out\nerr"),
        ("a [b] c", "two", '["x"]'),
        ("restart", "one", ""),
    ]
    assert log.failures == {}


@pytest.mark.parametrize(
    ("line", "message", "code", "unreachable"),
    [
        ('fatal: [one]: FAILED! => {"msg": "no", "rc": 3, "stderr": "why\\n"}', "why", 3, False),
        ('failed: [one] (item=a) => {"msg": "bad item"}', "bad item", 1, False),
        ('fatal: [one]: UNREACHABLE! => {"msg": "gone", "unreachable": true}', "gone", 1, True),
        ('fatal: [one]: FAILED! => {"msg": "cut', '{"msg": "cut', 1, False),
        ('fatal: [one]: FAILED! => {"failed_modules": {"m": {"msg": "deep"}}}', "deep", 1, False),
        ("fatal: [one]: FAILED!", "no message", 1, False),
    ],
)
def test_failures(line, message, code, unreachable):
    log, _ = read(f"TASK [t] **\n{line}")
    failure = log.failures["one"]
    assert (failure.message, failure.exit_code, failure.unreachable) == (message, code, unreachable)


def test_an_ignored_failure_is_none():
    log, events = read('TASK [t] **\nfatal: [one]: FAILED! => {"msg": "x"}\n...ignoring')
    assert log.failures == {}
    assert len(events) == 2
