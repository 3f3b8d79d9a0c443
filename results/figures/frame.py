"""Tables of a study as pandas data frames."""

from __future__ import annotations

import statistics as plain_statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from results.figures import table, trial_metrics
from results.figures.points import points_frame
from results.records.machines.gpu_record import joules_per_example
from results.study import cases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.figures.trial_metrics import TrialMetric
    from results.store.study_store import Store

__all__ = ["curves_frame", "points_frame", "steps_frame", "trials_frame"]

TRIAL_COLUMNS = (
    "trial_id",
    "case_id",
    "mode",
    "workload",
    "preset",
    "data",
    "device",
    "backend",
    "num_replicas",
    "per_replica_batch_size",
    "global_batch_size",
    "cores_per_replica",
    "repetition_index",
    "seed",
    "budget",
    "control",
    "revision",
    "status",
    "failure_phase",
    "reason",
    "is_oversubscribed",
    "device_sharing",
    "fingerprint",
    "duration_sec",
    "example_unit",
    "examples_per_sec",
    "examples_per_sec_per_replica",
    "step_time_median_sec",
    "time_to_first_step_sec",
    "peak_memory_bytes",
    "joules_per_example",
)

CURVE_COLUMNS = (
    "trial_id",
    "backend",
    "num_replicas",
    "global_batch_size",
    "repetition_index",
    "num_steps",
    "num_examples",
    "num_environment_steps",
    "train_time_sec",
    "metric",
    "value",
    "unit",
    "n",
    "low",
    "high",
    "protocol",
)

STEP_COLUMNS = ("trial_id", "rank", "phase", "step_index", "step_time_sec")


def _row(entry: cases.Entry, metrics: Sequence[TrialMetric]) -> dict[str, Any]:
    spec = entry.spec
    row: dict[str, Any] = dict.fromkeys(TRIAL_COLUMNS)
    row |= {name: getattr(spec, name) for name in TRIAL_COLUMNS if hasattr(spec, name)}
    row |= {
        "trial_id": entry.trial_id,
        "case_id": entry.case_id,
        "status": entry.state,
        "reason": entry.reason,
        "budget": None if spec.budget is None else str(spec.budget),
        "control": spec.control.value,
    }
    trial = entry.trial
    if trial is not None and trial.env is not None:
        row["is_oversubscribed"] = trial.env.placement.is_oversubscribed
        row["device_sharing"] = trial.env.placement.device_sharing
        row["fingerprint"] = trial.env.fingerprint
    if trial is not None and trial.status is not None:
        row["duration_sec"] = trial.status.duration_sec
        if trial.status.failure is not None:
            row["failure_phase"] = trial.status.failure.phase.value
    if entry.is_ok:
        throughput = entry.result.examples_per_sec
        row |= {
            "example_unit": entry.result.example_unit,
            "examples_per_sec": throughput,
            "examples_per_sec_per_replica": throughput / spec.num_replicas,
            "step_time_median_sec": plain_statistics.median(
                step for rank in entry.result.ranks for step in rank.step_time_sec
            ),
            "time_to_first_step_sec": table.of_trial(entry, "time_to_first_step"),
            "peak_memory_bytes": table.of_trial(entry, "peak_memory"),
        }
        if trial is not None and trial.env is not None:
            uses = trial.env.gpu_uses
            row["joules_per_example"] = joules_per_example(uses, throughput)
        for metric in entry.result.quality:
            row[f"quality_{metric.name}"] = metric.value
        for metric in entry.result.window_metrics:
            row[f"window_{metric.name}"] = metric.value
        for own in metrics:
            row[own.name] = trial_metrics.value_of(own, entry)
    return row


def trials_frame(store: Store) -> pd.DataFrame:
    """Returns one row per trial and scaling mode, including failed and missing ones.

    A trial of the shared baseline has one row per mode that it serves; a trial that is
    not in the plan has one row without a mode. Figures of trials that are not ok are
    empty, and so is ``joules_per_example`` where no GPU counts energy. Quality figures
    are in columns ``quality_<name>``, rates of the measured window in
    ``window_<name>``. Quality runs (``budget``), controls (``control``) and cases of
    other code (``revision``) are rows too, so that a mean over rows mixes them: the
    figures of the report are in ``points_frame``. Metrics of plugins have a column
    each (``trial_metrics.py``).

    Raises:
      ResultsError: The plan is missing or unreadable, a newer version wrote it, or a
        plugin cannot be used.
    """
    rows: list[dict[str, Any]] = []
    own = trial_metrics.installed(TRIAL_COLUMNS)
    for entry in cases.load_study(store).entries:
        row = _row(entry, own)
        rows.extend({**row, "mode": mode.value} for mode in entry.modes)
        if not entry.modes:
            rows.append(row)
    quality = sorted({name for row in rows for name in row} - set(TRIAL_COLUMNS))
    frame = pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, *quality])
    numbers = [name for name in frame if str(name).endswith(("_sec", "_replica"))]
    numbers += [name for name in frame if str(name).startswith(("quality_", "window_"))]
    numbers += ["joules_per_example", *(of.name for of in own if of.name in frame)]
    return frame.astype(
        {name: "float64" for name in numbers if name != "cores_per_replica"}
        | {"peak_memory_bytes": "Int64", "is_oversubscribed": "boolean"}
    )


def curves_frame(store: Store) -> pd.DataFrame:
    """Returns one row per quality run, evaluation and metric, of ok trials only.

    Raises:
      ResultsError: The plan is missing or unreadable, or a newer version wrote it.
    """
    rows = [
        {
            "trial_id": entry.trial_id,
            "backend": entry.spec.backend,
            "num_replicas": entry.spec.num_replicas,
            "global_batch_size": entry.spec.global_batch_size,
            "repetition_index": entry.spec.repetition_index,
            "num_steps": point.num_steps,
            "num_examples": point.num_examples,
            "num_environment_steps": point.num_environment_steps,
            "train_time_sec": point.train_time_sec,
            "metric": metric.name,
            "value": metric.value,
            "unit": metric.unit,
            "n": metric.num_examples,
            "low": metric.low,
            "high": metric.high,
            "protocol": metric.protocol,
        }
        for case in cases.load_study(store).quality_runs
        for entry in case.ok_entries
        for point in entry.result.curve
        for metric in point.quality
    ]
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def steps_frame(store: Store) -> pd.DataFrame:
    """Returns one row per trial, rank and step: every recorded step time in seconds.

    ``phase`` is ``warmup`` or ``measure``; ``step_index`` counts within the phase. All
    trials with a result are included, also those whose sanity checks failed.

    Raises:
      NewerSchemaError: A newer version wrote one of the records.
      UnavailableRecordError: The file system does not say what one of them holds.
    """
    parts = [
        pd.DataFrame(
            {
                "trial_id": trial.trial_id,
                "rank": rank.rank,
                "phase": phase,
                "step_index": np.arange(len(times)),
                "step_time_sec": np.asarray(times, dtype=np.float64),
            }
        )
        for trial in store.read().trials
        if trial.result is not None
        for rank in trial.result.ranks
        for phase, times in (
            ("warmup", rank.warmup_step_time_sec),
            ("measure", rank.step_time_sec),
        )
    ]
    if not parts:
        return pd.DataFrame(columns=list(STEP_COLUMNS))
    return pd.concat(parts, ignore_index=True)
