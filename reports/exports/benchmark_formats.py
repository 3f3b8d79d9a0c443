"""A study for programs that follow benchmarks over time.

pytest-benchmark and github-action-benchmark want one number per case, and a name that
stays the same from study to study: it has workload, preset, case and metric.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any, Final

from results.errors import ResultsError
from results.figures import table
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.gate_metrics import Metric
    from results.records.models import Environment
    from results.store.study_store import Store
    from results.study.cases import Case, Study

_OF_PYTEST_BENCHMARK: Final = "5.3.1"
"""The version whose files these are like."""
_FEWEST_FOR_QUARTILES: Final = 2


def github_action_benchmark(stores: Sequence[Store], metric: Metric) -> str:
    """Returns a study for benchmark-action/github-action-benchmark.

    Its ``tool`` is ``customBiggerIsBetter`` for throughput, and
    ``customSmallerIsBetter`` for metrics of which less is better.
    """
    study = load_study(stores[0])
    rows = []
    for case in _measured(study):
        estimate = table.of_trials(case, metric.name).estimate
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
    """Returns a study as ``pytest --benchmark-json`` writes it: seconds of a step.

    A round is a trial, which is a process of its own, and its value the mean time of a
    step over its measured window.
    """
    study = load_study(stores[0])
    cases = _measured(study)
    env = _environment(cases[0])
    commit = _commit(env)
    return json.dumps(
        {
            "machine_info": _machine(env),
            "commit_info": commit,
            "benchmarks": [_benchmark(case) for case in cases],
            "datetime": study.plan.created_at,
            "version": _OF_PYTEST_BENCHMARK,
        },
        indent=2,
    )


def _measured(study: Study) -> list[Case]:
    found = [case for case in study.cases if case.ok_entries]
    if not found:
        raise ResultsError(
            f"study {study.plan.study!r} has no trial that is ok, so there is nothing"
            " to export; see 'status'"
        )
    return found


def _name(case: Case) -> str:
    spec = case.spec
    return f"{spec.workload} {spec.preset}, {case.label}"


def _environment(case: Case) -> Environment:
    trial = case.ok_entries[0].trial
    assert trial is not None
    assert trial.env is not None
    return trial.env


def _machine(env: Environment) -> dict[str, Any]:
    """Returns the facts of the machine; records have no host name, nor has this."""
    return {
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
    }


def _commit(env: Environment) -> dict[str, Any]:
    state = env.machine_state
    return {
        "id": (state.git_commit if state is not None else None) or "unknown",
        "dirty": bool(state is not None and state.is_source_modified),
        "time": None,
        "author_time": None,
        "project": "",
        "branch": "",
    }


def _benchmark(case: Case) -> dict[str, Any]:
    rates = table.of_trials(case, "throughput").values
    times = [case.spec.global_batch_size / rate for rate in rates]
    name = _name(case)
    return {
        "group": case.spec.workload,
        "name": name,
        "fullname": name,
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
        "stats": _statistics(times),
    }


def _statistics(times: Sequence[float]) -> dict[str, Any]:
    """Returns the statistics that pytest-benchmark has, by its own definitions."""
    mean = statistics.fmean(times)
    deviation = statistics.stdev(times) if len(times) > 1 else 0.0
    first, third = _quartiles(times)
    spread = third - first
    inner = [of for of in times if first - 1.5 * spread <= of <= third + 1.5 * spread]
    near = sum(not mean - deviation <= of <= mean + deviation for of in times)
    far = len(times) - len(inner)
    return {
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
    }


def _quartiles(times: Sequence[float]) -> tuple[float, float]:
    if len(times) < _FEWEST_FOR_QUARTILES:
        return times[0], times[0]
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return first, third
