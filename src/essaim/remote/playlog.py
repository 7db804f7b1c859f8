"""Read what `ansible-playbook -v` prints, with the default callback and results as JSON."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

_TASK = re.compile(r"(?:TASK|RUNNING HANDLER) \[(?P<name>.*)\] \**")
_RESULT = re.compile(
    r"(?P<word>ok|changed|failed|fatal): \[(?P<host>[^\]\s]+)[^\]]*\]"
    r"(?:: (?P<how>[A-Z]+)!)?(?: \(item=.*?\))?(?: => (?P<body>\{.*))?"
)
GATHERING = "Gathering Facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What became of one task on one host."""

    task: str
    host: str
    failed: bool
    unreachable: bool
    exit_code: int
    output: str

    @property
    def message(self) -> str:
        """The reason of a failure in one line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else "no message"


@dataclass(slots=True)
class PlayLog:
    """The state of one reading: feed it lines, it says what each one means."""

    task: str = ""
    failures: dict[str, TaskResult] = field(default_factory=dict)  #: by host, those not ignored
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    _last: str = ""

    def read(self, line: str) -> str | TaskResult | None:
        """Give the name of a task that begins, a result, or None for a line that is neither."""
        line = line.rstrip("\n")
        if line.strip():
            self.tail.append(line)
        if begins := _TASK.fullmatch(line):
            self.task = begins["name"]
            return self.task
        if line.strip() == "...ignoring":
            self.failures.pop(self._last, None)
            return None
        found = _RESULT.fullmatch(line)
        return self._result(found) if found else None

    def _result(self, found: re.Match[str]) -> TaskResult | None:
        failed = found["word"] in {"failed", "fatal"}
        if self.task == GATHERING and not failed:
            return None  # hundreds of facts that nobody asked to see
        body = _parsed(found["body"])
        result = TaskResult(
            task=self.task,
            host=found["host"],
            failed=failed,
            unreachable=found["how"] == "UNREACHABLE",
            exit_code=exit_code_of(body, failed=failed),
            output=output_of(body),
        )
        if failed:
            self._last = result.host
            self.failures[result.host] = result
        return result


def _parsed(body: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(body or "{}")
    except ValueError:
        return {"msg": body}
    return parsed if isinstance(parsed, dict) else {"msg": str(parsed)}


def exit_code_of(body: dict[str, Any], *, failed: bool) -> int:
    """The exit code a task's result tells, or 1 for a failure without one."""
    code = body.get("rc")
    return code if isinstance(code, int) and bool(code) == failed else int(failed)


def output_of(body: dict[str, Any]) -> str:
    """Join what the task printed, the message first and the error last."""
    parts = [body.get(key) for key in ("msg", "stdout", "module_stdout", "stderr", "module_stderr")]
    parts += [output_of(nested) for nested in (body.get("failed_modules") or {}).values()]
    return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)
