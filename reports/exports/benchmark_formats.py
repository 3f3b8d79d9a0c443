"""A study for programs that follow benchmarks over time, and as MLPerf logs."""

from __future__ import annotations

import datetime as dt
import json
import math
import statistics
from typing import TYPE_CHECKING, Any, Final

from reports.site.card import slugs
from results.errors import ResultsError
from results.figures import scaling
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store
    from results.study.cases import Case, Entry, Study


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
    rates = scaling.case_cell(case, "throughput").values
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
    first_step = scaling.trial_value(entry, "time_to_first_step") or 0.0
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
        "throughput": scaling.trial_value(entry, "throughput"),
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
