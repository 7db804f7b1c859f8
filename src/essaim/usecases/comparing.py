"""The same topology in several variants under the same workload, measured and compared."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.config.compose import Composed, compose
from essaim.config.serial import fingerprint
from essaim.model.errors import EssaimError, HeldError, MovedError, RejectedError
from essaim.model.runs import RunState
from essaim.plan.comparing import measure
from essaim.usecases import comparing_jobs as jobs
from essaim.usecases.comparing_files import Asked, Folder
from essaim.usecases.comparing_report import require_plots, write_report
from essaim.usecases.comparing_variants import Variant, about, variants_of
from essaim.usecases.stacks import (
    StoredPlan,
    apply,
    follow,
    give_way,
    make_down_plan,
    make_plan,
)

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: Seconds to wait for somebody else who is at work on one of our stacks.
PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asks for."""

    where: str
    overrides: Sequence[str]
    workload: str
    repeat: int = 1
    side_by_side: bool = False  #: all variants at once, instead of one after another
    reuse: bool = False  #: raise each variant once for all its repetitions
    keep: bool = False  #: leave the stacks of the last repetition standing
    anew: bool = False  #: forget what the folder holds
    plots: bool = True


@dataclass(slots=True)
class Comparison:
    """How a comparison ended."""

    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  #: what could not be measured, in words
    standing: list[str] = field(default_factory=list)  #: stacks that were left
    files: list[Path] = field(default_factory=list)
    stopped: bool = False


def compare(
    services: Services,
    wanted: Wanted,
    out: Path,
    *,
    tell: Callable[[str], None],
    halt: threading.Event,
    agree: Callable[[Sequence[str]], None] = lambda _names: None,
) -> Comparison:
    """Measure every variant as often as asked for, but what the folder already holds.

    One that cannot be raised or measured is told of and the others go on.  Whatever is raised is
    taken down, also by the next call when this one is killed.  When `halt` is set, it ends soon.
    `agree` is called with the names of stacks that were kept, before they are taken down.
    """
    if wanted.plots:
        require_plots()
    variants = variants_of(wanted.where, wanted.overrides, wanted.workload)
    asked = Asked(
        where=wanted.where,
        workload=wanted.workload,
        side_by_side=wanted.side_by_side,
        reuse=wanted.reuse,
        variants=tuple(
            {"key": v.key, "label": v.label, "overrides": list(v.overrides), "digest": v.digest}
            for v in variants
        ),
    )
    with Folder(out).opened() as folder:
        folder.begin(asked, anew=wanted.anew)
        work = _Work(services, wanted, folder, tell, halt)
        doomed = work.leftovers(variants)
        if kept := [name for name in doomed if name in folder.kept]:
            agree(kept)
        work.carry_out(variants, doomed)
        if wanted.keep:
            folder.keep()
        ended = work.comparison
        ended.results = folder.results()
        ended.standing = folder.standing
        if ended.results:
            ended.files = write_report(folder, asked, ended.failures, plots=wanted.plots)
    return ended


def take_down(services: Services, name: str) -> None:
    """Leave nothing of a stack, whatever an earlier process was doing with it."""

    def plan() -> StoredPlan | None:
        known = services.stacks.get_stack(name) is not None
        return make_down_plan(services, name) if known else None

    _carry_out(services, name, plan)


def _carry_out(services: Services, name: str, plan: Callable[[], StoredPlan | None]) -> None:
    """Plan and apply until it is done; RejectedError says why it cannot be."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            give_way(services, name)
            stored = plan()
            if stored is None or not stored.plan.changes:
                return
            run = follow(services, apply(services, stored))
        except (HeldError, MovedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
            continue
        if run.state is not RunState.DONE:
            raise RejectedError(
                f"{name}: {run.error or 'it was stopped'}", hint=f"essaim runs show {run.id}"
            )
        return


class _Work:
    """One call of `compare`.  Side by side, its methods run in a thread for each variant."""

    def __init__(
        self,
        services: Services,
        wanted: Wanted,
        folder: Folder,
        tell: Callable[[str], None],
        halt: threading.Event,
    ) -> None:
        self.services = services
        self.wanted = wanted
        self.folder = folder
        self.tell = tell
        self.halt = halt
        self.comparison = Comparison()
        self._raised: dict[str, Composed] = {}  #: by variant; what stands of this call
        self._last: dict[str, int] = {}  #: by variant; its last repetition of this call

    def leftovers(self, variants: Sequence[Variant]) -> list[str]:
        """Stacks of earlier calls that are in the way, or that nobody wants any more."""
        todo = any(self._batches(variants))
        kept = {self._name(variant) for variant in variants} if self.wanted.keep else set()
        return [name for name in self.folder.standing if todo or name not in kept]

    def carry_out(self, variants: Sequence[Variant], doomed: Sequence[str]) -> None:
        todo = list(self._batches(variants))
        self._last = {variant.key: number for batch in todo for variant, number in batch}
        for name in doomed:
            self.tell(f"{name}: taking down what an earlier call left")
            self._take_down(name, self.tell)
        if not todo:
            self.tell(f"{self.folder.path}: everything asked for is there already")
        self._build_images([variant for batch in todo for variant, _ in batch])
        for batch in todo:
            if self.halt.is_set():
                self.comparison.stopped = True
                break
            with ThreadPoolExecutor(len(batch)) as pool:
                for future in [pool.submit(self._trial, *each) for each in batch]:
                    future.result()

    def _batches(self, variants: Sequence[Variant]) -> Iterator[list[tuple[Variant, int]]]:
        """What is still to be done, in order; the members of a batch are run at the same time."""
        numbers = range(1, self.wanted.repeat + 1)
        rounds = [
            [(v, number) for v in variants if not self.folder.has(v.key, number)]
            for number in numbers
        ]
        if self.wanted.side_by_side:
            yield from (batch for batch in rounds if batch)
            return
        each = [pair for batch in rounds for pair in batch]
        if self.wanted.reuse:
            each.sort(key=lambda pair: variants.index(pair[0]))
        # Otherwise the variants take turns: a computer that grows slower is slower for all of them.
        yield from ([pair] for pair in each)

    def _build_images(self, variants: Sequence[Variant]) -> None:
        """So that no variant's time has the building of its image in it."""
        seen: set[str] = set()
        for stack in [variant.composed.stack for variant in variants]:
            form = self.services.driver(stack.site).form
            for image in stack.images.values():
                if image.digest in seen or self.halt.is_set():
                    continue
                seen.add(image.digest)
                if self.services.images.ready(image, form) is None:
                    self.tell(f"building image {image.name}")
                    self.services.images.build(image, self.tell, form)

    def _trial(self, variant: Variant, repetition: int) -> None:
        def tell(text: str) -> None:
            self.tell(f"{variant.label} {repetition}/{self.wanted.repeat}: {text}")

        try:
            self._measured(variant, repetition, tell)
        except jobs.StoppedError:
            self.comparison.stopped = True
        except EssaimError as error:
            words = error.what + (f" ({error.hint})" if error.hint else "")
            self.comparison.failures.append(f"{variant.label}, repetition {repetition}: {words}")
            tell(f"not measured: {words}")
            self._raised.pop(variant.key, None)
            if not self.wanted.keep:
                self._take_down(self._name(variant), tell)
            return
        if not self._stays(variant, repetition):
            self._raised.pop(variant.key, None)
            self._take_down(self._name(variant), tell)

    def _measured(self, variant: Variant, repetition: int, tell: Callable[[str], None]) -> None:
        began_at, load = datetime.now(UTC).isoformat(timespec="seconds"), os.getloadavg()[0]
        raise_seconds = self._raise(variant, tell)
        if self.halt.is_set():
            raise jobs.StoppedError("stopped before jobs were submitted")
        bench = jobs.Bench(
            services=self.services,
            stack=self._raised[variant.key].stack,
            scheduler=variant.scheduler,
            workload=variant.workload,
            halt=self.halt,
            tell=tell,
        )
        trial = jobs.run(bench)
        measures = {"raise_seconds": raise_seconds, **asdict(measure(trial))}
        result = {
            "variant": variant.key,
            "label": variant.label,
            "repetition": repetition,
            "began_at": began_at,
            "load": round(load, 2),
            "measures": measures,
            "about": about(self.services, variant, jobs.version(bench)),
            "trial": asdict(trial),
        }
        self.folder.finish(variant.key, repetition, result)
        tell(_words(measures))

    def _raise(self, variant: Variant, tell: Callable[[str], None]) -> float | None:
        """Bring the variant up; the seconds it took, None when it stood already."""
        if variant.key in self._raised:
            return None
        name = self._name(variant)
        if name in self.folder.standing:
            self._take_down(name, tell)
        if fingerprint(compose(self.wanted.where, variant.overrides).stack) != fingerprint(
            variant.composed.stack
        ):
            raise RejectedError(
                f"the configuration of {variant.label} was changed meanwhile",
                hint="say --anew to compare what is there now",
            )
        composed = compose(self.wanted.where, [*variant.overrides, f"name={name}"])
        self.folder.stands(name)
        tell(f"raising {name}: {len(composed.stack.machines)} machines")
        began = time.monotonic()
        _carry_out(self.services, name, lambda: make_plan(self.services, composed))
        took = time.monotonic() - began
        self._raised[variant.key] = composed
        tell(f"raised in {took:.1f} s")
        return took

    def _stays(self, variant: Variant, repetition: int) -> bool:
        if repetition == self._last[variant.key]:
            return self.wanted.keep
        return self.wanted.reuse and not self.halt.is_set()

    def _take_down(self, name: str, tell: Callable[[str], None]) -> None:
        try:
            take_down(self.services, name)
            self.folder.gone(name)
        except EssaimError as error:
            self.comparison.failures.append(f"{name} could not be taken down: {error.what}")
            tell(f"{name} could not be taken down: {error.what}; essaim down {name} tries again")

    def _name(self, variant: Variant) -> str:
        """A name that no other stack has, and that the next call finds again."""
        return f"cmp-{variant.key}-{self.folder.id}"


def _words(measures: Mapping[str, Any]) -> str:
    if measures["makespan"] is None:
        return f"no job ended; {measures['failed']} failed"
    failed = f", {measures['failed']} jobs failed" if measures["failed"] else ""
    return (
        f"makespan {measures['makespan']:.2f} s, {measures['throughput']:.2f} jobs/s, "
        f"{measures['utilisation']:.0f} % used{failed}"
    )
