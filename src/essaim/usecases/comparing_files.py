"""The folder of a comparison: what is done, what stands, and the results as data."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from essaim.model.errors import HeldError, InvalidError, Problem, SetupError
from essaim.plan.comparing import (
    METRICS,
    Clock,
    Execution,
    Spread,
    Submission,
    Trial,
    summarise,
)

FORMAT = 1
STATE, RUNS = "state.json", "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is compared; a folder holds the answer to one question."""

    where: str
    workload: str
    side_by_side: bool
    reuse: bool
    variants: tuple[Mapping[str, Any], ...]  #: key, label, overrides, digest


class Folder:
    """A comparison on disk.  Every change is whole or not there, whenever the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {}

    @contextmanager
    def opened(self) -> Iterator[Folder]:
        """Be the only one who works here."""
        try:
            (self.path / RUNS).mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w", encoding="utf-8")
        except OSError as error:
            raise SetupError(
                f"{self.path} cannot be written: {error.strerror}", hint="choose another --out"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise HeldError(
                    f"another comparison is at work in {self.path}",
                    hint="wait for it, or choose another --out",
                ) from error
            self._state = self._read()
            yield self

    @property
    def id(self) -> str:
        """A few characters that make the names of this comparison's stacks its own."""
        return str(self._state["id"])

    @property
    def standing(self) -> list[str]:
        """Stacks that may have something standing."""
        return list(self._state.get("standing", []))

    @property
    def kept(self) -> list[str]:
        """Stacks that somebody wanted to keep."""
        return list(self._state.get("kept", []))

    def begin(self, asked: Asked, *, anew: bool = False) -> None:
        """Go on with what is here; InvalidError when it is the answer to another question."""
        wanted = json.loads(json.dumps(asdict(asked)))
        before = self._state.get("asked")
        if before is not None and not anew and before != wanted:
            hint = "choose another --out, or say --anew to forget what is there"
            what = f"{self.path} holds another comparison: {_difference(before, wanted)}"
            raise InvalidError([Problem(what, hint=hint)])
        if before is None or anew:
            shutil.rmtree(self.path / RUNS, ignore_errors=True)
            (self.path / RUNS).mkdir()
            # What stands is still to be taken down, whatever question it was raised for.
            standing = {"standing": self.standing, "kept": self.kept}
            self._state = {"id": secrets.token_hex(3), "finished": [], **standing}
        self._save(asked=wanted, format=FORMAT)

    def stands(self, stack: str) -> None:
        """Note that a stack is about to be raised."""
        with self._lock:
            self._save(standing=[*dict.fromkeys([*self.standing, stack])])

    def keep(self) -> None:
        """Note that what stands is to be kept."""
        with self._lock:
            self._save(kept=self.standing)

    def gone(self, stack: str) -> None:
        """Note that nothing of a stack is left."""
        with self._lock:
            left = {"standing": self.standing, "kept": self.kept}
            self._save(**{key: [n for n in names if n != stack] for key, names in left.items()})

    def has(self, variant: str, repetition: int) -> bool:
        """Whether that repetition is finished."""
        return [variant, repetition] in self._state["finished"]

    def finish(self, variant: str, repetition: int, result: Mapping[str, Any]) -> None:
        """Keep a repetition's result for good."""
        _write(self.path / RUNS / f"{variant}.{repetition}.json", _json(result))
        with self._lock:
            self._save(finished=[*self._state["finished"], [variant, repetition]])

    def results(self) -> list[dict[str, Any]]:
        """Every finished repetition, by variant and number."""
        found = []
        for variant, repetition in self._state["finished"]:
            file = self.path / RUNS / f"{variant}.{repetition}.json"
            found.append(json.loads(file.read_text(encoding="utf-8")))
        order = [each["key"] for each in self._state["asked"]["variants"]]
        return sorted(found, key=lambda r: (order.index(r["variant"]), r["repetition"]))

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one of the comparison's files."""
        _write(self.path / name, content)
        return self.path / name

    def _read(self) -> dict[str, Any]:
        file = self.path / STATE
        try:
            state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SetupError(f"{file} cannot be read: {error}", hint=f"rm {file}") from error
        if state.get("format") != FORMAT:
            raise SetupError(f"{file} is of another version", hint="choose another --out")
        return state

    def _save(self, **changes: Any) -> None:
        self._state = {**self._state, **changes}
        _write(self.path / STATE, _json(self._state))


def trial_of(stored: Mapping[str, Any]) -> Trial:
    """Return the trial that a result was made of."""
    parts = {
        "submissions": [Submission(**each) for each in stored["submissions"]],
        "executions": [Execution(**each) for each in stored["executions"]],
        "clocks": [Clock(**each) for each in stored["clocks"]],
    }
    return Trial(**{**stored, **parts})


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Spread]]:
    """The spread of every metric, by variant."""
    by_variant: dict[str, list[Mapping[str, float | None]]] = {}
    for result in results:
        by_variant.setdefault(result["variant"], []).append(result["measures"])
    return {variant: summarise(measures) for variant, measures in by_variant.items()}


def results_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """One line for each repetition."""
    keys = [*(metric.key for metric in METRICS), "clock_error"]
    rows = [
        [r["label"], r["repetition"], *(r["measures"].get(key) for key in keys), r["load"]]
        for r in results
    ]
    return _csv(["variant", "repetition", *keys, "load"], rows)


def jobs_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """One line for each time a job ran, in seconds since the first submit command began."""
    headings = ["variant", "repetition", "job", "machine", "began", "ended", "exit_code"]
    rows = []
    for result in results:
        first = min((s["began"] for s in result["trial"]["submissions"]), default=0)
        for e in result["trial"]["executions"]:
            began, ended = (f"{(e[key] - first) / 1e9:.6f}" for key in ("began", "ended"))
            name = e["machine"].partition("/")[2]
            where = [result["label"], result["repetition"], e["job"], name]
            rows.append([*where, began, ended, e["exit_code"]])
    return _csv(headings, rows)


def results_json(asked: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Everything, for programs."""
    spreads = {
        variant: {key: asdict(spread) for key, spread in figures.items()}
        for variant, figures in summary(results).items()
    }
    return _json({**asked, "summary": spreads, "results": list(results)})


def _csv(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([headings, *rows])
    return text.getvalue()


def _difference(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What differs, shortly: the first thing a person would look at."""
    for key in ("where", "workload", "side_by_side", "reuse"):
        if before[key] != wanted[key]:
            return f"{key} was {before[key]} and is {wanted[key]}"
    was, now = ([each["label"] for each in asked["variants"]] for asked in (before, wanted))
    if was != now:
        return f"it was of {', '.join(was)} and is of {', '.join(now)}"
    pairs = zip(before["variants"], wanted["variants"], strict=True)
    changed = [now["label"] for old, now in pairs if old != now]
    return f"the configuration of {', '.join(changed)} has changed since"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def _write(path: Path, content: str | bytes) -> None:
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError as error:
        raise SetupError(
            f"{path} cannot be written: {error.strerror}", hint="is the disk full?"
        ) from error
