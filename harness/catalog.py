"""The harness's access to the TensorFlow-free catalogues of workloads and backends."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import PlanError
from replicator.catalog import (
    BACKENDS,
    ONE_PROCESS,
    PARAMETER_SERVERS,
    SERVED_WORKERS,
    WORKERS,
    BackendInfo,
)
from results.records import program
from results.records.program import MESH, PIPELINE_STAGES
from workloads.catalog import WORKLOADS
from workloads.peers import EXPORT_SETTINGS, EXPORT_VARIABLE
from workloads.peers.catalog import PEERS, PeerInfo, exports_dir, unsupported
from workloads.peers.catalog import REFERENCE as EXPORTED_BACKEND
from workloads.spec import SYNTHETIC, PresetInfo, WorkloadInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from results.records.models import MetricFacts, OptionValue, TrialSpec

__all__ = ["BACKENDS", "EXPORTED_BACKEND", "EXPORT_SETTINGS", "EXPORT_VARIABLE"]
__all__ += ["ONE_PROCESS", "PARAMETER_SERVERS", "PEERS", "SERVED_WORKERS", "SYNTHETIC"]
__all__ += ["WORKERS", "WORKLOADS", "BackendInfo", "PeerInfo", "PresetInfo"]
__all__ += ["WorkloadInfo", "exports_dir", "unsupported"]

_T = TypeVar("_T")
WORKLOAD, BACKEND = "workloads", "backends"
"""Kinds of plugins (``results/plugins.py``)."""


def look_up(table: Mapping[str, _T], name: str, *, what: str) -> _T:
    """Returns an entry of a catalogue."""
    try:
        return table[name]
    except KeyError:
        import difflib  # only where there is an error to explain

        close = difflib.get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PlanError(
            f"unknown {what} {name!r}; known are {', '.join(table)}{hint}"
        ) from None


def find(kind: str, table: dict[str, _T], name: str, added_type: type) -> _T:
    """Returns an entry of a catalogue to which plugins add, of a type."""
    if name in table:
        return table[name]
    from results import plugins  # only where a name is not built in

    complain = plugins.complaint_of(added_type)
    added = plugins.find(kind, table, name, complain, Path.cwd())
    if added is None:
        known = dict.fromkeys(plugins.names(kind, table))
        look_up(known, name, what=plugins.KINDS[kind])
    assert added is not None  # or it is unknown
    return added


def plugins_of(workload_name: str, backend_name: str) -> dict[str, str]:
    """Returns what a trial has of plugins, by ``workload`` and ``backend``."""
    from results import plugins

    used = (plugins.used(WORKLOAD, workload_name), plugins.used(BACKEND, backend_name))
    return {plugins.KINDS[each.kind]: each.target for each in used if each is not None}


def adopt(spec: TrialSpec) -> None:
    """Imports what a trial has of plugins, where another process has planned it."""
    for name, target in spec.plugins.items():
        if name == "workload" and spec.workload not in WORKLOADS:
            workload(target)
        elif name == "backend" and spec.backend not in BACKENDS:
            backend(target)


def workload(name: str) -> WorkloadInfo:
    return find(WORKLOAD, WORKLOADS, name, WorkloadInfo)


def backend(name: str) -> BackendInfo:
    if name in PEERS:
        return PEERS[name]
    info = find(BACKEND, BACKENDS, name, BackendInfo)
    if info.not_swept_because:
        raise PlanError(f"backend {name!r} cannot be swept: {info.not_swept_because}")
    return info


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Blocks what a workload refuses into an error of the request."""
    try:
        yield
    except ValueError as error:
        raise PlanError(str(error)) from error


def preset(info: WorkloadInfo, name: str) -> PresetInfo:
    presets = {p.name: p for p in info.presets}
    return look_up(presets, name, what=f"preset of {info.name}")


def metrics(info: WorkloadInfo) -> tuple[MetricFacts, ...]:
    """Returns what a workload measures, as plans record it."""
    from results.records.models import MetricFacts  # --help needs no Pydantic

    return tuple(
        MetricFacts.model_validate(metric, from_attributes=True)
        for metric in info.metrics
    )


def judged_metrics(info: WorkloadInfo) -> list[str]:
    return [metric.name for metric in metrics(info) if metric.is_judged]


def check_data(info: WorkloadInfo, name: str) -> str:
    """Checks that the workload can read the data set, before anything is written."""
    try:
        with refusing():
            return info.check_data(name)
    except OSError as error:
        raise PlanError(
            f"data {name!r}: cannot use {str(error.filename)!r}:"
            f" {error.strerror or error}; choose another path, or fix this one"
        ) from error


def batch_units(
    info: WorkloadInfo, preset_name: str, options: Mapping[str, OptionValue]
) -> dict[str, int]:
    """Returns what a batch of a replica is a multiple of, by option, without ones."""
    if not info.batch_divisors:
        return {}
    config = info.make_config(preset_name, options)
    divisors = {name: getattr(config, name) for name in info.batch_divisors}
    return {name: value for name, value in divisors.items() if value != 1}


def check_backends(
    info: WorkloadInfo,
    options: Mapping[str, OptionValue],
    backends: Sequence[BackendInfo],
) -> None:
    """Checks that every backend can do what the workload and its options need."""
    stages = f"option {PIPELINE_STAGES}={options.get(PIPELINE_STAGES)}"
    asked = {
        ("compiled_functions", "option jit='compute'"): options.get("jit") == "compute",
        ("fit", "option loop='fit'"): options.get("loop") == "fit",
        ("pipelines", stages): program.devices_per_replica(options) > 1,
    }
    wanted = [(need, f"workload {info.name}") for need in info.needs]
    wanted += [pair for pair, is_asked in asked.items() if is_asked]
    if MESH in options and not any(each.name == "dtensor" for each in backends):
        raise PlanError(
            f"option {MESH}={options[MESH]} has no effect: only the backend dtensor"
            " splits dimensions; add it to --backends, or leave the option out"
        )
    for needed, what in wanted:
        for each in backends:
            if needed in each.lacks:
                able = [
                    name
                    for name, other in BACKENDS.items()
                    if needed not in other.lacks and not other.not_swept_because
                ]
                raise PlanError(
                    f"{what} does not work on backend {each.name!r}:"
                    f" {each.lacks[needed]}; use --backends {','.join(able)}, or leave"
                    f" the {what.partition(' ')[0]} out"
                )
