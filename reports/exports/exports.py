"""A study in other formats: for readers, for programs that follow benchmarks, as a zip.

The zip holds the facts that ``results.store.public`` lists; ``verify`` accepts it.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import statistics
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import rich.box
import rich.console
import rich.table
import rich.text

from reports import output_file
from reports.site.card import slugs
from reports.view import view_store
from reports.words import brief, caveats, formats
from results.errors import ResultsError
from results.figures import frame, scaling
from results.judging.gate import GATE_NAME
from results.store import manifest, public, untrusted
from results.store.study_store import EQUIVALENCE_NAME, PLAN_NAME, TRIALS_NAME
from results.study.cases import load_study

if TYPE_CHECKING:
    from pathlib import Path

    from reports.view import View
    from reports.words.brief import Row
    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store
    from results.study.cases import Case, Entry, Study

MOST_LINES: Final = 40
"""Of the Markdown: what a reviewer sees without scrolling past it."""
_MOST_ROWS: Final = 18
_MOST_LIMITS: Final = 8


def as_json(store: Store) -> str:
    """Returns the verdict and all figures of a study (``docs/schema/report``)."""
    view = view_store(store)
    verdict = {"verdict": verdict_data(view)}
    return json.dumps(verdict | frame.summarize(view.study, view.frame), indent=2)


def verdict_data(view: View) -> dict[str, Any]:
    shown = brief.verdict(view)
    return {
        "headline": shown.text,
        "level": shown.level.value,
        "next_step": shown.next_step,
        "caveats": [
            caveat._asdict() | {"level": caveat.level.value}
            for caveat in caveats.caveats_of(view)
        ],
        "limits": list(caveats.limits(view)),
    }


def csv_of_studies(stores: Sequence[Store], _metric: Metric | None = None) -> str:
    """Returns the tidy frame of some studies; the first column has their names."""
    import pandas as pd

    parts = []
    for store in stores:
        part = frame.points_frame(store)
        part.insert(0, "study", store.read_plan().study)
        parts.append(part)
    return output_file.as_csv(pd.concat(parts, ignore_index=True)).rstrip("\n")


def as_markdown(store: Store) -> str:
    """Returns verdict, table and limits of a study in at most 40 lines."""
    view = view_store(store)
    judged = brief.verdict(view)
    lines = [
        f"### {formats.escaped(view.study.plan.study)}",
        "",
        f"**{formats.escaped(judged.text)}**",
        "",
    ]
    if all_rows := brief.table(view, view.points):
        rows = _most_useful(all_rows)
        cells_of = [row.cells for row in rows]
        lines += formats.markdown_table(brief.columns(view), cells_of)
        num_more = len(all_rows) - len(rows)
        if num_more:
            lines.append("")
            more = formats.count(num_more, "more case")
            lines.append(f"{more}: `{brief.export(view.study.plan, 'csv')}`.")
        lines += ["", formats.escaped(judged.note), ""]
    limits = [
        f"- {formats.escaped(text)}"
        for text in (*_caveats(view), *caveats.limits(view))
    ]
    lines += limits[:_MOST_LIMITS]
    if len(limits) > _MOST_LIMITS:
        lines.append(
            f"- {formats.count(len(limits) - _MOST_LIMITS, 'more limit')} in the report"
        )
    assert len(lines) <= MOST_LINES
    return "\n".join(lines).rstrip()


def _caveats(view: View) -> list[str]:
    """Returns the grade of the evidence, and the caveats that limit trust."""
    return [
        f"{caveat.name}, {caveat.level.value}: {caveat.reason}"
        for caveat in caveats.caveats_of(view)
        if caveat.level is not caveats.Level.OK or caveat.name == "Evidence"
    ]


def _most_useful(rows: Sequence[Row]) -> list[Row]:
    by_size = sorted(rows, key=lambda row: -row.point.num_replicas)
    kept = {id(row) for row in by_size[:_MOST_ROWS]}
    return [row for row in rows if id(row) in kept]


DROPPED_FIRST: Final = (5, 3)
"""Columns that a narrow terminal lacks: the ratio, then the rate; no number is cut."""
_RATE: Final = 3
_WIDEST: Final = 10_000


def _terminal_table(
    view: View, rows: Sequence[brief.Row], numbers: Sequence[int]
) -> rich.table.Table:
    # The narrowest style with rules between the modes.
    table = rich.table.Table(box=rich.box.HORIZONTALS, padding=(0, 1, 0, 0))
    names = brief.columns(view)
    for number in numbers:
        table.add_column(
            names[number],
            justify="right" if number == _RATE else "left",
            # Only a name may be wrapped, and only where nothing else helps.
            no_wrap=number != 0,
            overflow="fold" if number == 0 else "ellipsis",
        )
    previous = None
    for row in rows:
        if previous not in (None, row.point.mode):
            table.add_section()
        # On two lines, so that the table fits 80 columns. Text, not str: a name in
        # brackets must not be parsed as markup.
        cells = [cell.replace(" [", "\n[").replace(", ", "\n") for cell in row.cells]
        table.add_row(*(rich.text.Text(cells[number]) for number in numbers))
        previous = row.point.mode
    return table


def _columns_that_fit(
    view: View, rows: Sequence[brief.Row], console: rich.console.Console
) -> list[int]:
    fitting = [number for number, name in enumerate(brief.columns(view)) if name]
    options = console.options.update(max_width=_WIDEST)
    for number in DROPPED_FIRST:
        wide = console.measure(_terminal_table(view, rows, fitting), options=options)
        if wide.maximum <= console.width:
            break
        if number in fitting:
            fitting.remove(number)
    return fitting


def print_summary(store: Store, console: rich.console.Console) -> None:
    """Prints what the page of a study says, as a table in the terminal.

    Args:
        store: The study; its plan and records may still grow.
        console: Where to print; its width says which columns have room.

    Raises:
        ResultsError: A record cannot be read.
    """
    view = view_store(store)
    judged = brief.verdict(view)

    def show(text: str, style: str = "") -> None:
        if text:
            console.print(rich.text.Text(text, style=style))

    console.print()
    verdict = f"{judged.verdict}: " * bool(judged.verdict)
    show(f"{verdict}{judged.sentences[0]}", "bold")
    if judged.rows:
        numbers = _columns_that_fit(view, judged.rows, console)
        console.print(_terminal_table(view, judged.rows, numbers))
        names = brief.columns(view)
        dropped = [names[at] for at in DROPPED_FIRST if names[at] and at not in numbers]
        if dropped:
            listed = ", ".join(dropped)
            show(f"{console.width} columns have no room for: {listed}", "dim")
        show(judged.note, "dim")
    for sentence in judged.sentences[1:]:
        show(sentence)
    show(f"{judged.trust}." if judged.trust else "")
    for text in _caveats(view):
        show(text)
    show(f"Next: {judged.next_step}." if judged.following else "")


MOST_BYTES: Final = 2 * 2**20
_MEGABYTE: Final = 1_000_000
_SOME_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the first that the format knows


def records_of_studies(
    stores: Iterable[Store], data_url: str
) -> tuple[dict[Path, bytes | str], list[str]]:
    """Returns the records that pages link, and why studies have none, a line each."""
    records: dict[Path, bytes | str] = {}
    missing = []
    for store in stores:
        name = store.root.name
        if data_url:
            records[store.root] = data_url.replace("{study}", name)
            continue
        try:
            content = records_of(store)
        except ResultsError as error:
            missing.append(str(error))
            continue
        if len(content) <= MOST_BYTES:
            records[store.root] = content
            continue
        missing.append(
            f"the records of {name!r} are {len(content) / _MEGABYTE:.1f} MB as a zip,"
            f" at most {MOST_BYTES / _MEGABYTE:.0f} MB go beside a page; put them"
            " elsewhere, and give their address as --data-url"
        )
    return records, missing


def export_records(stores: Sequence[Store], _metric: object = None) -> bytes:
    return records_of(stores[0])


def records_of(store: Store) -> bytes:
    """Returns the public records of a study as a zip file; raises ResultsError."""
    files = {}
    for name in _names(store):
        try:
            stored = untrusted.read_bytes(store.root / name) or b""
            content = public.content(name, stored)
        except untrusted.DamagedFileError as error:
            raise ResultsError(
                f"no records of {store.root.name!r} are exported: {name} is damaged"
                f" ({error}); restore it from a copy, or remove its trial and measure"
                " it again"
            ) from error
        if content is not None:
            files[name] = content
    # Of an earlier version, without a manifest, it would promise too much.
    if manifest.MANIFEST_NAME in untrusted.names_in(store.root):
        sums = {name: manifest.digest(content) for name, content in files.items()}
        lines = (f"{one}  {name}\n" for name, one in sorted(sums.items()))
        files[manifest.MANIFEST_NAME] = "".join(lines).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{store.root.name}/{name}", _SOME_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return stream.getvalue()


def _names(store: Store) -> Iterator[str]:
    """Yields the path of each file of records in the study."""
    top = untrusted.names_in(store.root)
    yield from (name for name in (PLAN_NAME, GATE_NAME) if name in top)
    for part in (store, store.equivalence):
        below = TRIALS_NAME if part is store else f"{EQUIVALENCE_NAME}/{TRIALS_NAME}"
        for trial_id in part.trial_ids():
            for name in sorted(untrusted.names_in(part.trial_dir(trial_id))):
                if manifest.EVIDENCE.fullmatch(name):
                    yield f"{below}/{trial_id}/{name}"


# Programs that follow benchmarks over time.

_OF_PYTEST_BENCHMARK: Final = "5.3.1"
"""The version whose files these are like."""


def github_action_benchmark(stores: Sequence[Store], metric: Metric) -> str:
    """Returns a study for github-action-benchmark, as ``customBiggerIsBetter``."""
    study = load_study(stores[0])
    rows = []
    for case in _measured(study):
        estimate = scaling.case_cell(case, metric.name).estimate
        if estimate is None:  # a metric of which nothing was recorded
            continue
        row: dict[str, Any] = {
            "name": f"{_name(case)}: {metric.name}",
            "unit": estimate.unit,
            "value": estimate.value,
            "extra": f"study {study.plan.study}, n = {estimate.n}",
        }
        if estimate.low is not None and estimate.high is not None:
            row["range"] = f"{estimate.low:.6g} to {estimate.high:.6g}"
        rows.append(row)
    if not rows:
        raise ResultsError(
            f"no case of study {study.plan.study!r} has {metric.name} of every trial,"
            " so there is nothing to export; choose another --metric"
        )
    return json.dumps(rows, indent=2)


def pytest_benchmark(stores: Sequence[Store], _metric: Metric) -> str:
    """Returns seconds of a step as ``pytest --benchmark-json``; rounds are trials."""
    study = load_study(stores[0])
    cases = _measured(study)
    env = cases[0].ok_entries[0].env
    assert env is not None
    state = env.machine_state
    return json.dumps(
        {
            # The facts of the machine; records have no host name, nor has this.
            "machine_info": {
                "node": "",
                "processor": env.cpu_model,
                "machine": "",
                "python_compiler": "",
                "python_implementation": "CPython",
                "python_implementation_version": env.python_version,
                "python_version": env.python_version,
                "python_build": ["", ""],
                "release": env.kernel,
                "system": "Linux",
                "cpu": {"brand_raw": env.cpu_model, "count": env.num_logical_cores},
            },
            "commit_info": {
                "id": (state.git_commit if state is not None else None) or "unknown",
                "dirty": bool(state is not None and state.is_source_modified),
                "time": None,
                "author_time": None,
                "project": "",
                "branch": "",
            },
            "benchmarks": [_benchmark(case) for case in cases],
            "datetime": study.plan.created_at,
            "version": _OF_PYTEST_BENCHMARK,
        },
        indent=2,
    )


def _measured(study: Study) -> list[Case]:
    cases = [case for case in study.cases if case.ok_entries]
    if not cases:
        raise ResultsError(
            f"study {study.plan.study!r} has no trial that is ok, so there is nothing"
            " to export; see 'status'"
        )
    return cases


def _name(case: Case) -> str:
    return f"{case.spec.workload} {case.spec.preset}, {case.label}"


def _benchmark(case: Case) -> dict[str, Any]:
    rates = map(scaling.throughput_of, case.ok_entries)
    times = [case.spec.global_batch_size / rate for rate in rates]
    # By the definitions of pytest-benchmark; one round has no spread.
    mean = statistics.fmean(times)
    deviation = statistics.stdev(times) if len(times) > 1 else 0.0
    first = third = times[0]
    if len(times) > 1:
        first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    spread = third - first
    inner = [
        time for time in times if first - 1.5 * spread <= time <= third + 1.5 * spread
    ]
    near = sum(not mean - deviation <= time <= mean + deviation for time in times)
    far = len(times) - len(inner)
    return {
        "group": case.spec.workload,
        "name": _name(case),
        "fullname": _name(case),
        "params": None,
        "param": None,
        "extra_info": {"case_id": case.case_id, "num_replicas": case.spec.num_replicas},
        "options": {
            "disable_gc": False,
            "timer": "perf_counter",
            "min_rounds": len(times),
            "max_time": 1.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": {
            "min": min(times),
            "max": max(times),
            "mean": mean,
            "stddev": deviation,
            "rounds": len(times),
            "median": statistics.median(times),
            "iqr": spread,
            "q1": first,
            "q3": third,
            "iqr_outliers": far,
            "stddev_outliers": near,
            "outliers": f"{near};{far}",
            "ld15iqr": min(inner),
            "hd15iqr": max(inner),
            "ops": 1 / mean,
            "total": math.fsum(times),
            "iterations": 1,
        },
    }


# Programs that read MLPerf logs can read these; they are no submissions: the rules of
# MLPerf name other models, data and targets. Times are those of the records: the start
# of a trial, its first step, its evaluations on the clock of training, its end.

PREFIX: Final = ":::MLLOG "
_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_PER_SEC: Final = 1_000
_NAMES: Final = {"resnet50": "resnet"}
"""What MLPerf calls a workload, where it has it."""


def export_mlperf(stores: Sequence[Store], _metric: Metric) -> dict[str, bytes]:
    """Returns the logs by path: a folder per study, a file per trial that is ok."""
    studies = [load_study(store) for store in stores]
    files: dict[str, bytes] = {}
    folders = slugs([study.plan.study for study in studies])
    for folder, study in zip(folders, studies, strict=True):
        kinds = {"timed": study.cases, "learning": study.quality_runs}
        trials = [
            (f"{kind} {case.label} r{entry.spec.repetition_index}", entry)
            for kind, cases in kinds.items()
            for case in cases
            for entry in case.ok_entries
        ]
        if not trials:
            raise ResultsError(
                f"study {study.plan.study!r} has no trial that is ok, so there is no"
                " log to write; see 'status'"
            )
        names = slugs([name for name, _ in trials])
        for name, (_, entry) in zip(names, trials, strict=True):
            lines = "\n".join(_lines(study, entry))
            files[f"{folder}/{name}.log"] = f"{lines}\n".encode()
    return files


def _lines(study: Study, entry: Entry) -> Iterator[str]:
    trial, spec, result = entry.trial, entry.spec, entry.result
    assert trial is not None
    assert trial.status is not None
    begin = _since_epoch(trial.status.started_at)
    first_step = scaling.time_to_first_step_of(entry)
    ready = begin + round(_PER_SEC * first_step)
    end = max(ready, begin + round(_PER_SEC * trial.status.duration_sec))
    # The examples that it has trained on, as far as they are recorded.
    num_steps = spec.num_warmup_steps + result.num_measured_steps
    num_steps = max(num_steps, *(point.num_steps for point in result.curve), 0)
    evaluated = [each.num_examples for point in result.curve for each in point.quality]
    facts: dict[str, Any] = {
        "submission_benchmark": _NAMES.get(spec.workload, spec.workload),
        "submission_division": "open",
        "submission_org": "none: not a submission",
        "submission_status": "research",
        "submission_platform": _platform(entry),
        "seed": spec.seed,
        "global_batch_size": spec.global_batch_size,
        "num_warmup_steps": spec.num_warmup_steps,
        "train_samples": spec.global_batch_size * num_steps,
        "eval_samples": max(evaluated, default=0),
    }
    for key, value in facts.items():
        yield _line(begin, _POINT, key, value)
    yield _line(begin, _START, "init_start")
    yield _line(ready, _END, "init_stop")
    yield _line(ready, _START, "run_start")
    whole = {"step_num": 0, "samples_count": 0}
    yield _line(ready, _START, "block_start", metadata=whole)
    for point in result.curve:
        at = min(end, ready + round(_PER_SEC * point.train_time_sec))
        samples = {
            "step_num": point.num_steps,
            "samples_count": point.num_steps * spec.global_batch_size,
        }
        yield _line(at, _START, "eval_start", metadata=samples)
        for metric in point.quality[:1]:
            named = {**samples, "metric": metric.name, "unit": metric.unit}
            yield _line(at, _POINT, "eval_accuracy", metric.value, named)
        for metric in point.quality[1:]:  # MLPerf has one figure of an evaluation
            value = {metric.name: metric.value}
            yield _line(at, _POINT, "tracked_stats", value, samples)
        yield _line(at, _END, "eval_stop", metadata=samples)
    throughput = {
        "throughput": scaling.throughput_of(entry),
        "unit": f"{study.example_unit}/s",
    }
    case = {"num_replicas": spec.num_replicas, "backend": spec.backend}
    yield _line(end, _POINT, "tracked_stats", throughput, case)
    yield _line(end, _END, "block_stop", metadata=whole)
    yield _line(end, _END, "run_stop", metadata={"status": "success"})


def _platform(entry: Entry) -> str:
    env = entry.env
    if env is None:
        return "not recorded"
    if entry.spec.device == "gpu" and env.gpus:
        return f"{entry.spec.num_replicas}x{env.gpus[0]}"
    return env.cpu_model


def _since_epoch(date: str) -> int:
    """Returns a date of a record in thousandths of a second; 0 for other strings."""
    try:
        time = dt.datetime.fromisoformat(date.replace("Z", "+00:00"))
        return max(round(_PER_SEC * time.timestamp()), 0)
    except (ValueError, OverflowError, OSError):
        return 0


def _line(
    at: int,
    event_type: str,
    key: str,
    value: Any = None,
    metadata: dict[str, Any] | None = None,
) -> str:
    fields = {
        "namespace": "",
        "time_ms": at,
        "event_type": event_type,
        "key": key,
        "value": value,
        # What the logger of MLPerf adds: where the line comes from.
        "metadata": {"file": "records", "lineno": 0, **(metadata or {})},
    }
    return f"{PREFIX}{json.dumps(fields)}"
