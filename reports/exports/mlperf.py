"""Trials as logs in the format of MLPerf (``:::MLLOG`` lines), a file per trial.

Programs that read MLPerf logs can read these; they are no submissions: the rules of
MLPerf name other models, data and targets. Times are those of the records: the start
of a trial, its first step, its evaluations on the clock of training, its end.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from reports.site.card import slugs
from results.errors import ResultsError
from results.figures import table
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from results.judging.gate_metrics import Metric
    from results.store.study_store import Store
    from results.study.cases import Case, Entry, Study

PREFIX: Final = ":::MLLOG "
_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_PER_SEC: Final = 1_000
_NAMES: Final = {"resnet50": "resnet"}
"""What MLPerf calls a workload, where it has it."""


def export(stores: Sequence[Store], _metric: Metric) -> dict[str, bytes]:
    """Returns the logs by path: a folder per study, a file per trial that is ok."""
    studies = [load_study(store) for store in stores]
    files: dict[str, bytes] = {}
    for folder, study in zip(
        slugs([study.plan.study for study in studies]), studies, strict=True
    ):
        trials = [
            (case, entry)
            for case in (*study.cases, *study.quality_runs)
            for entry in case.ok_entries
        ]
        if not trials:
            raise ResultsError(
                f"study {study.plan.study!r} has no trial that is ok, so there is no"
                " log to write; see 'status'"
            )
        names = slugs([_name(case, entry) for case, entry in trials])
        for name, (_, entry) in zip(names, trials, strict=True):
            lines = "\n".join(_lines(study, entry))
            files[f"{folder}/{name}.log"] = f"{lines}\n".encode()
    return files


def _name(case: Case, entry: Entry) -> str:
    kind = "timed" if case.spec.budget is None else "learning"
    return f"{kind} {case.label} r{entry.spec.repetition_index}"


def _lines(study: Study, entry: Entry) -> Iterator[str]:
    trial, spec, result = entry.trial, entry.spec, entry.result
    assert trial is not None
    assert trial.status is not None
    begin = _since_epoch(trial.status.started_at)
    first_step = table.of_trial(entry, "time_to_first_step") or 0.0
    ready = begin + round(_PER_SEC * first_step)
    end = max(ready, begin + round(_PER_SEC * trial.status.duration_sec))
    facts: dict[str, Any] = {
        "submission_benchmark": _NAMES.get(spec.workload, spec.workload),
        "submission_division": "open",
        "submission_org": "none: not a submission",
        "submission_status": "research",
        "submission_platform": _platform(entry),
        "seed": spec.seed,
        "global_batch_size": spec.global_batch_size,
        "num_warmup_steps": spec.num_warmup_steps,
        "train_samples": _num_examples(entry),
        "eval_samples": max(
            (of.num_examples for point in result.curve for of in point.quality),
            default=0,
        ),
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
        "throughput": table.of_trial(entry, "throughput"),
        "unit": f"{study.example_unit}/s",
    }
    yield _line(
        end,
        _POINT,
        "tracked_stats",
        throughput,
        {"num_replicas": spec.num_replicas, "backend": spec.backend},
    )
    yield _line(end, _END, "block_stop", metadata=whole)
    yield _line(end, _END, "run_stop", metadata={"status": "success"})


def _num_examples(entry: Entry) -> int:
    """Returns the examples that a trial has trained on, as far as they are recorded."""
    result = entry.result
    num_steps = entry.spec.num_warmup_steps + result.num_measured_steps
    trained = max((point.num_steps for point in result.curve), default=0)
    return entry.spec.global_batch_size * max(num_steps, trained)


def _platform(entry: Entry) -> str:
    env = None if entry.trial is None else entry.trial.env
    if env is None:
        return "not recorded"
    if entry.spec.device == "gpu" and env.gpus:
        return f"{entry.spec.num_replicas}x{env.gpus[0]}"
    return env.cpu_model


def _since_epoch(date: str) -> int:
    """Returns a date of a record in thousandths of a second; 0 for other strings."""
    try:
        found = dt.datetime.fromisoformat(date.replace("Z", "+00:00"))
        return max(round(_PER_SEC * found.timestamp()), 0)
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
