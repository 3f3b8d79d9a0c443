"""The figures of a study as pandas data frames, and as plain data.

A figure is a row of one tidy frame; page, terminal and exports are projections of it.
"""

from __future__ import annotations

import collections
import math
import statistics as plain_statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from results.figures import learning_gains, lost_time, scaling, trial_metrics
from results.plugins import PluginError
from results.records.measuring import joules_per_example
from results.records.models import Control
from results.statistics import estimates
from results.study import equivalence
from results.study.cases import Entry, Study, load_study

if TYPE_CHECKING:
    from results.figures.lost_time import Explained
    from results.figures.scaling import Comparison, Point
    from results.figures.trial_metrics import TrialMetric
    from results.records.models import ScalingMode, TrialResult
    from results.statistics.estimates import Estimate
    from results.store.study_store import Store
    from results.study.cases import Case

    Row = dict[str, Any]


_TYPES: Final = {
    **dict.fromkeys(("figure", "quantity", "kind", "case", "mode"), "object"),
    **dict.fromkeys(("backend", "other_backend", "revision"), "object"),
    **dict.fromkeys(("num_replicas", "per_replica_batch_size"), "Int64"),
    "global_batch_size": "Int64",
    **dict.fromkeys(("value", "low", "high"), "float64"),
    "n": "Int64",
    **dict.fromkeys(("unit", "method", "caveats", "protocol"), "object"),
    **dict.fromkeys(("is_baseline", "is_oversubscribed"), "bool"),
    "trial_id": "object",
    **dict.fromkeys(("repetition_index", "num_steps", "num_examples"), "Int64"),
    "num_environment_steps": "Int64",
    "train_time_sec": "float64",
    "rank": "Int64",
    "phase": "object",
    "step_index": "Int64",
}
POINT_COLUMNS: Final = tuple(_TYPES)


def new_row(figure: str, quantity: str, kind: str, case: Case, **more: Any) -> Row:
    """Returns a row of a case, with what every row of it has, and ``more``."""
    spec = case.spec
    row: Row = dict.fromkeys(POINT_COLUMNS)
    row |= {
        "figure": figure,
        "quantity": quantity,
        "kind": kind,
        "case": case.label,
        "mode": modes_text(case.modes),
        "backend": spec.backend,
        "revision": spec.revision,
        "num_replicas": spec.num_replicas,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "global_batch_size": spec.global_batch_size,
        "unit": "",
        "caveats": "",
        "is_baseline": False,
        "is_oversubscribed": case.is_oversubscribed,
    }
    return row | more


def modes_text(modes: Sequence[ScalingMode]) -> str:
    return " and ".join(mode.value for mode in modes)


def points_frame(source: Store | Study) -> pd.DataFrame:
    """Returns every number of the report, one per row.

    Quality runs, controls, other revisions and trials that are not ok are in no row of
    the figures that they are no part of, so that a mean of rows is never a mean of
    different things. ``figure`` and ``quantity`` select, ``kind`` says what a row is:

    ==========  =============================================  =======================
    figure      quantity                                       kind
    ==========  =============================================  =======================
    scaling     throughput, speedup, efficiency,               estimate, repetition,
                efficiency_of_best                             ceiling, crossed_out
    forest      ratio of throughput: backend / other_backend   estimate
    cases       start, memory, FLOP utilisation, of plugins    estimate
    waterfall   parts of a step in s, then the whole           part, whole
    shares      the parts as shares of the step                part
    input       what the input pipelines take alone            estimate
    learning    the name of a quality metric                   evaluation
    gains       what more replicas change in learning          estimate
    steps       step_time                                      step
    missing     a quantity without a value                     missing
    ==========  =============================================  =======================

    An estimate has ``low`` and ``high``, the ends of its 95 % interval, where there is
    one, and ``caveats`` says where it is no evidence. A ceiling is the throughput of as
    many programs that never communicate. A case that differs from one replica is
    crossed out: it has a reason as its ``method``, as what is missing has, and no
    value.

    Raises ResultsError for a plan that is missing, unreadable or contradictory.
    """
    study = source if isinstance(source, Study) else load_study(source)
    points = scaling.points(study)
    losses = lost_time.losses(study, points)
    return frame_of(study, points, scaling.compare_backends(study), losses)


def records(frame: pd.DataFrame) -> list[Row]:
    """Returns the figures as plain data; what a row does not have is left out."""
    shown = frame[frame["kind"] != "step"].astype(object)
    rows = shown.where(shown.notna(), None).to_dict("records")
    return [
        {
            str(name): value
            for name, value in row.items()
            if value is not None and value is not False and value != ""
        }
        for row in rows
    ]


def frame_of(
    study: Study,
    points: Sequence[Point],
    comparisons: Sequence[Comparison],
    losses: Sequence[Explained],
) -> pd.DataFrame:
    """Returns the frame of ``points_frame`` where its figures are known already."""
    rows = [
        *_scaling_rows(points),
        *_ceilings(study, points),
        *_ratio_rows(comparisons),
        *_case_rows(points),
        *_part_rows(losses),
        *_learning_rows(study),
        *_gain_rows(study),
    ]
    plain = pd.DataFrame(rows, columns=list(POINT_COLUMNS)).astype(_TYPES)
    return pd.concat([plain, *_steps(study)], ignore_index=True)


def _figure(
    figure: str,
    quantity: str,
    case: Case,
    estimate: Estimate | None,
    why: str = "",
    **more: Any,
) -> Row:
    """Returns the row of an estimate; where there is none, why it is missing."""
    if estimate is None:
        return new_row("missing", quantity, "missing", case, **{"method": why} | more)
    names = "value", "low", "high", "n", "unit", "method"
    own = {name: getattr(estimate, name) for name in names}
    own |= {"caveats": estimate.caveat} | more
    return new_row(figure, quantity, "estimate", case) | own


def _scaling_rows(points: Sequence[Point]) -> Iterator[Row]:
    for point in points:
        case, why = point.case, point.missing_reason
        for quantity in scaling.RATIOS:
            plain = new_row("scaling", quantity, "estimate", case)
            plain |= {"mode": point.mode.value, "is_baseline": point.is_baseline}
            estimate, fixed = getattr(point, quantity), point.fixed(quantity)
            if point.is_crossed_out:
                yield plain | {"kind": "crossed_out", "method": why}
            elif estimate is None and fixed is not None:
                yield plain | {"value": fixed, "method": "1 by definition"}
            else:
                more = {name: plain[name] for name in ("mode", "is_baseline")}
                more["caveats"] = "; ".join(point.caveats(estimate))
                yield _figure("scaling", quantity, case, estimate, why, **more)
            if point.throughput is not None and quantity == "throughput":
                plain["unit"] = point.throughput.unit
            for entry, value in _repetitions(point, quantity):
                yield plain | {"kind": "repetition", "value": value} | _trial(entry)


def _trial(entry: Entry) -> Row:
    return {"trial_id": entry.trial_id, "repetition_index": entry.spec.repetition_index}


def _repetitions(point: Point, quantity: str) -> list[tuple[Entry, float]]:
    """Returns single repetitions; ratios where both sides have the same ones."""
    rate, entries = scaling.throughput_of, point.case.ok_entries
    if quantity == "throughput":
        return [(entry, rate(entry)) for entry in entries]
    if point.is_baseline or point.baseline is None or point.speedup is None:
        return []
    if point.speedup.method == estimates.TWO_GROUPS:
        return []
    baseline_n = point.baseline.spec.num_replicas
    factors = {"speedup": baseline_n, "efficiency": baseline_n / point.num_replicas}
    return [
        (entry, factors[quantity] * rate(entry) / rate(there))
        for entry, there in scaling.paired(point.case, point.baseline)
        if quantity in factors
    ]


def _ceilings(study: Study, points: Sequence[Point]) -> Iterator[Row]:
    """Yields what as many programs that never communicate reach together."""
    for case in study.controls:
        rate = scaling.estimate(case, scaling.throughput_of, unit="")
        if case.spec.control is not Control.INDEPENDENT or rate is None:
            continue
        size = case.spec.num_replicas
        for mode in case.modes:
            row = new_row("scaling", "throughput", "ceiling", case)
            row |= {"mode": mode.value, "n": rate.n, "value": rate.value}
            yield row
            for point in points:
                alone, n = point.throughput, point.num_replicas
                if not point.is_baseline or point.mode is not mode:
                    continue
                if alone is not None and n != size:
                    speedup = n * rate.value / alone.value
                    ratio = row | {"backend": point.backend, "value": speedup}
                    yield ratio | {"quantity": "speedup"}
                    yield ratio | {"quantity": "efficiency", "value": speedup / size}


def _ratio_rows(comparisons: Sequence[Comparison]) -> Iterator[Row]:
    for item in comparisons:
        if item.ratio is None:
            continue
        caveats = [item.ratio.caveat, "oversubscribed" * item.is_oversubscribed]
        if not (item.holds or item.is_oversubscribed):
            caveats.append(f"no difference shown among {item.num_compared} ratios")
        yield _figure("forest", "ratio", item.first, item.ratio) | {
            "mode": modes_text(item.modes),
            "other_backend": item.second.spec.backend,
            "is_oversubscribed": item.is_oversubscribed,
            "caveats": "; ".join(filter(None, caveats)),
        }


def _case_rows(points: Sequence[Point]) -> Iterator[Row]:
    plugins = trial_metrics.names()
    for case in {point.case.case_id: point.case for point in points}.values():
        for name in (*scaling.OF_CASES, *plugins):
            try:
                cell = scaling.case_cell(case, name)
            except PluginError as error:  # the study is as good as without it
                cell = scaling.Cell(None, str(error))
            if cell.estimate is not None or name in plugins:
                yield _figure("cases", name, case, cell.estimate, cell.why_not)


def _part_rows(losses: Sequence[Explained]) -> Iterator[Row]:
    for item in losses:
        case, lost = item.case, item.lost
        if lost is None:
            yield _figure("waterfall", "step", case, None, item.reason)
            continue
        for part in (*lost.parts, lost.step):
            name, time = part.name, part.time
            row = _figure("waterfall", name, case, time, part.reason)
            if time is None:
                yield row
                continue
            kind = "whole" if part is lost.step else "part"
            yield row | {"kind": kind, "caveats": part.reason or time.caveat}
            if part.share is not None and kind == "part":
                yield _figure("shares", name, case, part.share, kind=kind)
        if (bound := lost.input_bound) is not None:
            said = bound.verdict + "; explains the loss" * bound.explains_loss
            yield _figure("input", "input", case, bound.input_sec, caveats=said)
            yield _figure("input", "share", case, bound.fraction, caveats=said)


_OF_METRIC: Final = ("value", "low", "high", "unit", "method", "protocol")
_OF_EVALUATION: Final = (
    *("num_steps", "num_examples", "num_environment_steps"),
    "train_time_sec",
)


def _learning_rows(study: Study) -> Iterator[Row]:
    for case in study.quality_runs:
        for entry in case.ok_entries:
            for point in entry.result.curve:
                of_point = {name: getattr(point, name) for name in _OF_EVALUATION}
                for metric in point.quality:
                    row = new_row("learning", metric.name, "evaluation", case)
                    row |= {name: getattr(metric, name) for name in _OF_METRIC}
                    yield row | of_point | _trial(entry) | {"n": metric.num_examples}


def _gain_rows(study: Study) -> Iterator[Row]:
    for gains in learning_gains.study_gains(study):
        least = "at least" if gains.is_higher_better else "at most"
        target = f"{gains.metric} of {least} {gains.target:g}"
        for gain in gains.cases:
            if (better := gain.better) is not None:
                yield _figure("gains", "better", gain.case, better) | {
                    "protocol": gains.metric
                }
            for name, time in (("seconds", gain.seconds), ("examples", gain.examples)):
                row = _figure("gains", name, gain.case, time.median)
                # What lies beyond what was measured is no number.
                for end in ("value", "low", "high"):
                    row[end] = None if row[end] == math.inf else row[end]
                reached = f"reached by {time.num_reached} of {time.median.n} runs"
                yield row | {"protocol": target, "caveats": reached}


def _times(result: TrialResult) -> Iterator[tuple[int, str, np.ndarray]]:
    for rank in result.ranks:
        yield rank.rank, "warmup", np.asarray(rank.warmup_step_time_sec, np.float64)
        yield rank.rank, "measure", np.asarray(rank.step_time_sec, np.float64)


def _steps(study: Study) -> list[pd.DataFrame]:
    """Returns the recorded steps of all timed trials that are ok, in one frame."""
    rows, times_of_entries = [], []
    for case in study.cases:
        for entry in case.ok_entries:
            row = new_row("steps", "step_time", "step", case, unit="s", **_trial(entry))
            for rank, phase, times in _times(entry.result):
                if times.size:
                    rows.append(row | {"phase": phase, "rank": rank})
                    times_of_entries.append(times)
    if not rows:
        return []
    # A study has many steps, and a row of Python objects for each would be slow.
    lengths = [times.size for times in times_of_entries]
    frame = pd.DataFrame(rows, columns=list(POINT_COLUMNS))
    repeated = frame.loc[np.repeat(np.arange(len(frame)), lengths)].reset_index(
        drop=True
    )
    repeated["value"] = np.concatenate(times_of_entries)
    repeated["step_index"] = np.concatenate([np.arange(length) for length in lengths])
    return [repeated.astype(_TYPES)]


TRIAL_COLUMNS = (
    *("trial_id", "case_id", "mode", "workload", "preset", "data", "device"),
    *("backend", "num_replicas", "per_replica_batch_size", "global_batch_size"),
    *("cores_per_replica", "repetition_index", "seed", "budget", "control"),
    *("revision", "status", "failure_phase", "reason", "is_oversubscribed"),
    *("device_sharing", "fingerprint", "duration_sec", "example_unit"),
    *("examples_per_sec", "examples_per_sec_per_replica", "step_time_median_sec"),
    *("time_to_first_step_sec", "peak_memory_bytes", "joules_per_example"),
)

CURVE_COLUMNS = (
    *("trial_id", "backend", "num_replicas", "global_batch_size", "repetition_index"),
    *("num_steps", "num_examples", "num_environment_steps", "train_time_sec"),
    *("metric", "value", "unit", "n", "low", "high", "protocol"),
)

STEP_COLUMNS = ("trial_id", "rank", "phase", "step_index", "step_time_sec")


def _row(entry: Entry, metrics: Sequence[TrialMetric]) -> dict[str, Any]:
    spec, trial, env = entry.spec, entry.trial, entry.env
    row: dict[str, Any] = {name: getattr(spec, name, None) for name in TRIAL_COLUMNS}
    row |= {
        "trial_id": entry.trial_id,
        "case_id": entry.case_id,
        "status": entry.state,
        "reason": entry.reason,
        "budget": None if spec.budget is None else str(spec.budget),
        "control": spec.control.value,
    }
    if env is not None:
        row["is_oversubscribed"] = env.placement.is_oversubscribed
        row["device_sharing"] = env.placement.device_sharing
        row["fingerprint"] = env.fingerprint
    if trial is not None and trial.status is not None:
        row["duration_sec"] = trial.status.duration_sec
        if trial.status.failure is not None:
            row["failure_phase"] = trial.status.failure.phase.value
    if not entry.is_ok:
        return row
    result, throughput = entry.result, entry.result.examples_per_sec
    row |= {
        "example_unit": result.example_unit,
        "examples_per_sec": throughput,
        "examples_per_sec_per_replica": throughput / spec.num_replicas,
        "step_time_median_sec": plain_statistics.median(
            step for rank in result.ranks for step in rank.step_time_sec
        ),
        "time_to_first_step_sec": scaling.time_to_first_step_of(entry) or None,
        "peak_memory_bytes": scaling.peak_memory_of(entry) or None,
    }
    if env is not None:
        row["joules_per_example"] = joules_per_example(env.gpu_uses, throughput)
    row |= {f"quality_{metric.name}": metric.value for metric in result.quality}
    row |= {f"window_{metric.name}": metric.value for metric in result.window_metrics}
    return row | {own.name: trial_metrics.value_of(own, entry) for own in metrics}


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

    Raises ResultsError for a plan or a plugin that cannot be used.
    """
    rows: list[dict[str, Any]] = []
    own = trial_metrics.installed(TRIAL_COLUMNS)
    for entry in load_study(store).entries:
        row = _row(entry, own)
        rows.extend({**row, "mode": mode.value} for mode in entry.modes)
        if not entry.modes:
            rows.append(row)
    quality = sorted({name for row in rows for name in row} - set(TRIAL_COLUMNS))
    frame = pd.DataFrame(rows, columns=[*TRIAL_COLUMNS, *quality])
    numbers = ["joules_per_example", *quality]
    numbers += [name for name in TRIAL_COLUMNS if name.endswith(("_sec", "_replica"))]
    return frame.astype(
        {name: "float64" for name in numbers if name != "cores_per_replica"}
        | {"peak_memory_bytes": "Int64", "is_oversubscribed": "boolean"}
    )


def curves_frame(store: Store) -> pd.DataFrame:
    """Returns one row per quality run, evaluation and metric, of ok trials only.

    Raises ResultsError for a plan that cannot be read.
    """
    rows = [
        {**row, "metric": row["quantity"]} for row in _learning_rows(load_study(store))
    ]
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def steps_frame(store: Store) -> pd.DataFrame:
    """Returns one row per trial, rank and step: every recorded step time in seconds.

    ``phase`` is ``warmup`` or ``measure``; ``step_index`` counts within the phase. All
    trials with a result are included, also those whose sanity checks failed.

    Raises NewerSchemaError or UnavailableRecordError for a record.
    """
    parts = [
        pd.DataFrame(
            {
                "trial_id": trial.trial_id,
                "rank": rank,
                "phase": phase,
                "step_index": np.arange(times.size),
                "step_time_sec": times,
            }
        )
        for trial in store.read().trials
        if trial.result is not None
        for rank, phase, times in _times(trial.result)
    ]
    if not parts:
        return pd.DataFrame(columns=list(STEP_COLUMNS))
    return pd.concat(parts, ignore_index=True)


REPORT_VERSION: Final = 3


def _pick(source: object, *names: str) -> dict[str, Any]:
    """Returns attributes by name; JSON has no infinity."""
    fields = {name: getattr(source, name) for name in names}
    return {
        name: None if value == math.inf else value for name, value in fields.items()
    }


def _agreements(agreements: equivalence.Agreements) -> dict[str, Any]:
    return {
        "num_steps": agreements.num_steps,
        "tolerance": equivalence.TOLERANCE,
        "repeats_itself": agreements.repeats_itself,
        "pairs": [
            {
                "first": pair.first.spec.backend,
                "second": pair.second.spec.backend,
                **_pick(pair.first.spec, "num_replicas", "per_replica_batch_size"),
                "largest_relative_difference": pair.difference,
                "n": pair.num_pairs,
                "holds": pair.holds,
            }
            for pair in agreements.pairs
        ],
    }


def _match(match: equivalence.Match) -> dict[str, Any]:
    return {
        **_pick(match, "backend", "num_replicas", "outcome", "reason"),
        **_pick(match, "global_batch_size", "loss_difference"),
        "num_steps": equivalence.NUM_STEPS,
        "loss_tolerance": equivalence.LOSS_TOLERANCE,
        **_pick(match, "change_difference", "change_tolerance", "changed", "remark"),
    }


def summarize(study: Study, frame: pd.DataFrame) -> dict[str, Any]:
    """Returns the figures of a study, the rows of its tidy frame, and what failed."""
    states = collections.Counter(entry.state for entry in study.planned)
    return {
        "report_version": REPORT_VERSION,
        **_pick(study.plan, "study", "baseline_num_replicas", "repeats"),
        "coverage": {"planned": len(study.planned), **dict(sorted(states.items()))},
        "figures": records(frame),
        "agreement": _agreements(equivalence.agreements_of(study)),
        "matches": [_match(match) for match in study.matches],
        "metrics": [facts.model_dump(mode="json") for facts in study.plan.metrics],
        "failures": [
            {"trial_id": entry.trial_id, "state": entry.state, "reason": entry.reason}
            for entry in study.planned
            if not entry.is_ok
        ],
        "problems": [
            {"path": problem.label, "reason": problem.reason}
            for problem in study.problems
        ],
    }


def summary(source: Store | Study) -> dict[str, Any]:
    """Returns the figures of a study, which a store is read for, as plain data.

    Raises ResultsError for a plan that is missing, unreadable or contradictory.
    """
    study = source if isinstance(source, Study) else load_study(source)
    return summarize(study, points_frame(study))
