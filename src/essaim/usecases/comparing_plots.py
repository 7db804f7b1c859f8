"""Figures of a comparison.  matplotlib is imported when one is drawn, and never opens a window."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from essaim.plan.comparing import METRICS, Metric, align, percentile, queue_latencies, spread
from essaim.usecases.comparing_files import trial_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = Mapping[str, Any]

#: Colours that people who confuse some can tell apart; the order is that of the variants.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#6B6B6B")
INK, PALE = "#22272e", "#d7dce2"
BARS = ("makespan", "throughput", "utilisation")
LESS = "makespan"
#: More jobs than this are drawn as points of a picture, not as shapes: the page stays small.
SHAPES = 3000
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text: smaller, and found by a search
    "svg.hashsalt": "essaim",  # the same figure has the same bytes
}


def draw(results: Sequence[Result]) -> dict[str, bytes]:
    """The figures, by file name: `plot` with the measures, `timeline` with the jobs."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and only an extra

    files: dict[str, bytes] = {}
    with mpl.rc_context(STYLE):
        height = 2 * (1.6 + 0.5 * len(_by_label(results)))
        plot = _figure(height)
        _measures(plot, _by_label(results))
        picked = {label: middle(each) for label, each in _by_label(results).items()}
        rows = [max(2, result["about"]["cores"]) for result in picked.values()]
        height = 1.0 + sum(min(6.0, 0.55 + 0.18 * row) for row in rows)
        timeline = _figure(height)
        _timeline(timeline, picked, rows)
        for name, figure in (("plot", plot), ("timeline", timeline)):
            files[f"{name}.svg"] = _saved(figure, "svg", metadata={"Date": None})
            files[f"{name}.png"] = _saved(figure, "png", dpi=150)
    return files


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - without pyplot no window, no global state

    return Figure(figsize=(10, height), layout="constrained")


def middle(repetitions: Sequence[Result]) -> Result:
    """The repetition of median makespan: the one that stands best for all of them."""
    known = [each for each in repetitions if each["measures"]["makespan"] is not None]
    ordered = sorted(known, key=lambda each: float(each["measures"]["makespan"]))
    return ordered[(len(ordered) - 1) // 2] if ordered else repetitions[0]


def _by_label(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(str(result["label"]), []).append(result)
    return found


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _measures(figure: Figure, variants: Mapping[str, Sequence[Result]]) -> None:
    axes = figure.subplots(2, 2)
    metrics = {metric.key: metric for metric in METRICS}
    for panel, key in zip(axes.flat, BARS, strict=False):
        values = {
            label: [each["measures"][key] for each in repetitions]
            for label, repetitions in variants.items()
        }
        _bars(panel, values, metrics[key], "less is better" if key == LESS else "more is better")
    _waits(axes.flat[3], variants)


def _bars(
    panel: Axes, values: Mapping[str, Sequence[float | None]], metric: Metric, note: str
) -> None:
    panel.set_title(f"{metric.title}, {metric.unit}")
    panel.set_title(note, loc="right", fontsize=8, fontweight="normal", color="#66707a")
    for index, (_, repetitions) in enumerate(values.items()):
        its = spread(repetitions)
        if its.mean is None:
            continue
        panel.barh(index, its.mean, height=0.5, color=_colour(index))
        if its.deviation is not None:
            panel.errorbar(its.mean, index, xerr=its.deviation, color=INK, capsize=3, lw=1.2)
            known = [value for value in repetitions if value is not None]
            panel.plot(known, [index + 0.34] * len(known), "|", color=INK, ms=5, mew=1)
        beside = its.mean + (its.deviation or 0.0)
        text = f"{its.mean:.{metric.digits}f}"
        if its.deviation is not None:
            text += f" ± {its.deviation:.{metric.digits}f}"
        panel.annotate(
            text, (max(beside, its.high or 0.0), index), (6, 0), textcoords="offset points",
            va="center", fontsize=9,
        )  # fmt: skip
    panel.set_yticks(range(len(values)), list(values))
    panel.invert_yaxis()
    panel.tick_params(length=0)
    panel.grid(axis="x", color=PALE, lw=0.6)
    panel.set_axisbelow(True)
    panel.set_xlim(0, panel.get_xlim()[1] * 1.3)  # room for the figures beside the bars


def _waits(panel: Axes, variants: Mapping[str, Sequence[Result]]) -> None:
    panel.set_title("Queue latency, s")
    panel.set_title("share of jobs that began within", loc="right", fontsize=8,
                    fontweight="normal", color="#66707a")  # fmt: skip
    for index, (label, repetitions) in enumerate(variants.items()):
        waits = sorted(
            wait
            for each in repetitions
            for wait in queue_latencies(align(trial_of(each["trial"]))[0])
        )
        if not waits:
            continue
        shares = [100 * (position + 1) / len(waits) for position in range(len(waits))]
        panel.step([0.0, *waits], [0.0, *shares], where="post", color=_colour(index), lw=1.8,
                   label=f"{label} (p95 {percentile(waits, 0.95):.3g} s)")  # fmt: skip
    panel.set_ylim(0, 102)
    panel.set_xlim(left=0)
    panel.set_ylabel("% of jobs")
    panel.grid(color=PALE, lw=0.6)
    if panel.lines:
        panel.legend(frameon=False, fontsize=9, loc="lower right")


def _timeline(figure: Figure, picked: Mapping[str, Result], rows: Sequence[int]) -> None:
    panels = figure.subplots(
        len(picked), 1, sharex=True, squeeze=False, height_ratios=[0.55 + 0.18 * r for r in rows]
    )[:, 0]
    for index, (panel, (label, result)) in enumerate(zip(panels, picked.items(), strict=True)):
        trial = align(trial_of(result["trial"]))[0]
        start = min((s.began for s in trial.submissions), default=0)
        spans: dict[str, list[tuple[float, float]]] = {}
        for e in trial.executions:
            its = ((e.began - start) / 1e9, (e.ended - start) / 1e9)
            spans.setdefault(e.machine.partition("/")[2], []).append(its)
        panel.set_title(f"{label}, repetition {result['repetition']}")
        _lanes(panel, spans, _colour(index), rasterized=len(trial.executions) > SHAPES)
        if (span := result["measures"]["makespan"]) is not None:
            panel.axvline(span, color=INK, lw=1, ls=(0, (3, 3)))
    panels[-1].set_xlabel("seconds since the first submit command; dashed: the end of the last job")
    panels[-1].set_xlim(left=0)


def _lanes(
    panel: Axes, spans: Mapping[str, list[tuple[float, float]]], colour: str, *, rasterized: bool
) -> None:
    """One lane for each core that was used at the same time, the lanes of a machine together."""
    lanes, ticks = 0, {}
    for machine in sorted(spans, key=lambda name: (len(name), name)):
        free: list[float] = []
        bars: list[list[tuple[float, float]]] = []
        for began, ended in sorted(spans[machine]):
            lane = next((i for i, until in enumerate(free) if until <= began), len(free))
            if lane == len(free):
                free.append(0.0)
                bars.append([])
            free[lane] = ended
            bars[lane].append((began, ended - began))
        for lane, its in enumerate(bars):
            panel.broken_barh(
                its, (lanes + lane + 0.1, 0.8), facecolor=colour, edgecolor="white", lw=0.6,
                rasterized=rasterized,
            )  # fmt: skip
        ticks[machine] = lanes + len(bars) / 2
        lanes += len(bars)
    panel.set_yticks(list(ticks.values()), list(ticks), fontsize=8)
    panel.tick_params(length=0)
    panel.set_ylim(max(lanes, 1), 0)
    panel.grid(axis="x", color=PALE, lw=0.6)
    panel.set_axisbelow(True)


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format=kind, facecolor="white", **options)
    return data.getvalue()
