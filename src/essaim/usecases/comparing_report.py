"""The results of a comparison as files: CSV, JSON, figures, and a page that needs nothing else."""

from __future__ import annotations

import base64
import importlib.util
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib import metadata
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from essaim import __version__
from essaim.config.tree import LIBRARY
from essaim.model.errors import MissingExtraError
from essaim.plan.comparing import METRICS, Metric, Spread
from essaim.usecases.comparing_files import jobs_csv, results_csv, results_json, summary

if TYPE_CHECKING:
    from essaim.usecases.comparing_files import Asked, Folder

Result = Mapping[str, Any]

#: The metrics of which the best value is worth pointing out, and whether less is better.
BEST = {"makespan": True, "throughput": False, "utilisation": False}
#: Lines of a digest that tell it from all others.
SHORT = 16


def require_plots() -> None:
    """MissingExtraError, before anything is raised, when figures could not be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError(
            "figures are drawn with matplotlib, which is not installed",
            "compare",
            otherwise="or say --no-plots",
        )


def write_report(
    folder: Folder, asked: Asked, failures: Sequence[str], *, plots: bool
) -> list[Path]:
    """Write everything there is to say about the repetitions that are finished."""
    results = folder.results()
    environment = describe_computer()
    about = {**asdict(asked), "environment": environment, "failures": list(failures)}
    files = [
        folder.write("results.csv", results_csv(results)),
        folder.write("jobs.csv", jobs_csv(results)),
        folder.write("results.json", results_json(about, results)),
    ]
    figures: dict[str, bytes] = {}
    if plots:
        from essaim.usecases.comparing_plots import draw  # noqa: PLC0415 - needs an extra

        figures = draw(results)
        files += [folder.write(name, data) for name, data in figures.items()]
    files.append(folder.write("report.html", page(about, results, figures)))
    return files


def describe_computer() -> dict[str, str]:
    """What the comparison was made with and on."""
    tools = {"Essaim": __version__, "Python": platform.python_version()}
    for package in ("asyncssh", "hydra-core", "matplotlib"):
        if importlib.util.find_spec(package.partition("-")[0]):
            tools[package] = metadata.version(package)
    return {
        **tools,
        "computer": f"{os.cpu_count()} cores, {platform.system()} {platform.release()} "
        f"{platform.machine()}",
    }


def page(about: Mapping[str, Any], results: Sequence[Result], figures: Mapping[str, bytes]) -> str:
    """The report as one file: no script, nothing that is fetched."""
    title = f"{Path(about['where']).name} under {Path(about['workload']).name}"
    spreads = summary(results)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_scope(about, results))}</p>',
        *(f'<p class="warning">{escape(each)}</p>' for each in about["failures"]),
        f'<p class="lead">{escape(verdict(results, spreads))}</p>',
        "<h2>Figures</h2>",
        _table(results, spreads, [m for m in METRICS if not _is_latency(m)]),
        _table(results, spreads, [m for m in METRICS if _is_latency(m)]),
        '<p class="soft">Mean ± standard deviation of repetitions; the best mean is marked.</p>',
        *_figures(figures),
        "<h2>What was compared</h2>",
        _variants(results),
        "<h2>What was run</h2>",
        _workloads(results),
        "<h2>What was measured, and how</h2>",
        _method(about, results),
        "<h2>Every repetition</h2>",
        _repetitions(results),
        "<h2>Made with</h2>",
        _rows((("", ""),), [(key, value) for key, value in about["environment"].items()], "text"),
    ]
    template = (LIBRARY / "compare" / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=escape(title), body="\n".join(parts))


def verdict(results: Sequence[Result], spreads: Mapping[str, Mapping[str, Spread]]) -> str:
    """The outcome in a sentence, which claims no difference that is within the spread."""
    labels = {each["variant"]: str(each["label"]) for each in results}
    ranked = sorted(
        (figures["makespan"].mean, figures["makespan"].deviation or 0.0, labels[variant])
        for variant, figures in spreads.items()
        if figures["makespan"].mean is not None
    )
    if not ranked:
        return "No job ended."
    best, spread, first = ranked[0]
    assert best is not None  # noqa: S101 - those without were left out
    said = f"{first} had the shortest makespan, {best:.2f} s"
    others = []
    for mean, deviation, label in ranked[1:]:
        assert mean is not None  # noqa: S101 - likewise
        close = mean - best <= spread + deviation
        times = f"{label} took {mean / best:.1f} times as long"
        others.append(f"{label} is within the spread of it" if close else times)
    return f"{said}; {', '.join(others)}." if others else f"{said}."


def _scope(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    counts = {sum(r["variant"] == key for r in results) for key in {r["variant"] for r in results}}
    often = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    how = "side by side" if about["side_by_side"] else "one after another"
    raised = "raised once each" if about["reuse"] else "raised anew for each repetition"
    when = sorted(datetime.fromisoformat(result["began_at"]) for result in results)
    since, until = (f"{each.astimezone(UTC):%Y-%m-%d %H:%M}" for each in (when[0], when[-1]))
    times = f"{often} repetition" + ("s" if max(counts) > 1 else "")
    return f"{times}, {how}, {raised}; begun between {since} and {until} UTC"


def _number(value: float | None, metric: Metric) -> str:
    return "-" if value is None else f"{value:.{metric.digits}f}"


def _is_latency(metric: Metric) -> bool:
    return metric.key.startswith(("submit_", "queue_"))


def _table(
    results: Sequence[Result],
    spreads: Mapping[str, Mapping[str, Spread]],
    metrics: Sequence[Metric],
) -> str:
    labels = {each["variant"]: str(each["label"]) for each in results}
    best: dict[str, float] = {}
    for key, less in BEST.items():
        means = [mean for its in spreads.values() if (mean := its[key].mean) is not None]
        if len(means) > 1:
            best[key] = min(means) if less else max(means)
    rows = []
    for variant, figures in spreads.items():
        cells = [_cell(figures[metric.key], metric, best) for metric in metrics]
        rows.append(f"<tr><td>{escape(labels[variant])}</td>{''.join(cells)}</tr>")
    head = "".join(
        f"<th>{escape(metric.title)}<small>{escape(metric.unit)}</small></th>" for metric in metrics
    )
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(its: Spread, metric: Metric, best: Mapping[str, float]) -> str:
    text = _number(its.mean, metric)
    if its.deviation is not None:
        text += f" <small>± {_number(its.deviation, metric)}</small>"
    mark = ""
    if metric.key in best and its.mean == best[metric.key]:
        mark = ' class="best"'
    elif metric.key == "failed" and its.high:
        mark = ' class="bad"'
    return f"<td{mark}>{text}</td>"


def _figures(figures: Mapping[str, bytes]) -> Iterable[str]:
    said = {
        "plot": "Makespan, throughput, utilisation and queue latency of each variant",
        "timeline": "When and where each job ran, for each variant's repetition of median makespan",
    }
    for name, words in said.items():
        if data := figures.get(f"{name}.svg"):
            text = base64.b64encode(data).decode()
            yield f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{text}">'


def _variants(results: Sequence[Result]) -> str:
    first = {each["variant"]: each for each in reversed(results)}
    rows = []
    for result in [first[key] for key in dict.fromkeys(each["variant"] for each in results)]:
        its = result["about"]
        images = "; ".join(f"{i['name']} {i['digest'][:SHORT]}" for i in its["images"])
        rows.append(
            (
                str(result["label"]),
                its["version"] or its["scheduler"],
                f"{its['nodes']} nodes, {its['cores']} cores, {its['memory']} MiB",
                f"{its['site']} ({its['driver']})",
                images,
                its["configuration"][:SHORT],
                " ".join(its["overrides"]),
            )
        )
    headings = ("Variant", "Scheduler", "Nodes", "Site", "Image", "Configuration", "Arguments")
    note = (
        "Image: digest of its description. Configuration: digest of the composed stack, roles "
        "included. The whole digests are in results.json."
    )
    table = _rows([(heading, "") for heading in headings], rows, "text")
    return f'{table}<p class="soft">{note}</p>'


def _workloads(results: Sequence[Result]) -> str:
    said: dict[str, list[str]] = {}
    for result in results:
        its = result["about"]["workload"]
        lines = [
            f"# {its['summary'] or its['name']}",
            *(f"{key}: {its[key]}" for key in ("jobs", "cores", "seconds", "submit")),
            "command: |",
            *(f"  {line}" for line in str(its["command"]).splitlines()),
        ]
        labels = said.setdefault("\n".join(lines), [])
        if result["label"] not in labels:
            labels.append(result["label"])
    return "".join(
        (f"<p>{escape(', '.join(labels))}</p>" if len(said) > 1 else "")
        + f"<pre>{escape(text)}</pre>"
        for text, labels in said.items()
    )


def _method(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    worst = max((r["measures"]["clock_error"] for r in results), default=0.0)
    notes = [
        (metric.title.replace("p50", "p50, p95, max"), metric.how)
        for metric in METRICS
        if metric.how
    ]
    where = (
        "Each job notes the time before and after its command on the machine it runs on; the notes "
        "are collected over SSH when the queue is empty. Submit commands are timed on the "
        "controller."
    )
    clocks = (
        "Before the jobs, each machine's clock was compared with this computer's over SSH; a "
        "difference larger than its own error was taken out. Moments of different machines may "
        f"still be misplaced by up to {worst:.3f} s."
    )
    loads = [result["load"] for result in results]
    busy = (
        f"Before a repetition, {min(loads):.1f} to {max(loads):.1f} processes wanted one of the "
        f"{os.cpu_count()} cores of the computer Essaim ran on; where the machines are on the same "
        "computer, that slowed the jobs."
    )
    notes += [("Where the times come from", where), ("Clocks", clocks), ("Load", busy)]
    if about["side_by_side"]:
        words = (
            "The variants ran at the same time and, where they share a computer, slowed each other."
        )
        notes.append(("Side by side", words))
    items = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in notes)
    return f"<dl>{items}</dl>"


def _repetitions(results: Sequence[Result]) -> str:
    headings = [("Variant", ""), ("No", ""), *((m.title, m.unit) for m in METRICS)]
    rows = [
        (
            str(r["label"]),
            str(r["repetition"]),
            *(_number(r["measures"][metric.key], metric) for metric in METRICS),
        )
        for r in results
    ]
    table = _rows(headings, rows, "")
    return f"<details><summary>{len(results)} repetitions</summary>{table}</details>"


def _rows(headings: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], kind: str) -> str:
    head = "".join(
        f"<th>{escape(title)}<small>{escape(unit)}</small></th>" for title, unit in headings
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(title for title, _ in headings) else ""
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="wide"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'
