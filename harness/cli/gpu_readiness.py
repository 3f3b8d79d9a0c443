"""Checks the GPUs of a sweep before anything of it is written."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from harness.doctor import gpu as gpu_lib
from harness.errors import UnfitMachineError
from harness.machine import gpu_watch, gpus
from harness.planning import estimate
from harness.trial import gpu_probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.doctor.gpu import GpuState
    from harness.machine.gpus import Gpu
    from harness.trial.gpu_probe import Probe
    from results.records.models import PlannedTrial


@contextlib.contextmanager
def ready(
    missing: Sequence[PlannedTrial],
    overrides: Mapping[str, Any] | None,
    runs_dir: Path | None = None,
    *,
    study: str,
    num_hosts: int = 1,
) -> Iterator[dict[str, Any]]:
    """Checks all that can be checked before the missing trials of a study are run.

    While the ``with`` block runs, no other sweep of this machine gets their GPUs.
    """
    replaced = dict(overrides or {})
    probe = replaced.pop("probe", gpu_probe.probe)
    chosen = check_models(missing, num_hosts)
    if chosen and runs_dir is not None:
        estimate.check_memory(missing, runs_dir, study=study, gpu=chosen[0].name)
    with gpu_watch.hold_gpus(chosen, study=study):
        has_tensorflow = any(trial.spec.program is None for trial in missing)
        check_ready(chosen, probe if has_tensorflow else None)
        yield replaced


def check_models(trials: Sequence[PlannedTrial], num_hosts: int = 1) -> tuple[Gpu, ...]:
    """The GPUs of the largest trial on this host; none where all run on CPUs."""
    counts = [t.spec.num_replicas for t in trials if t.spec.device == "gpu"]
    if not counts:
        return ()
    return gpus.choose(gpus.visible_gpus(), -(-max(counts) // num_hosts))


def check_ready(chosen: Sequence[Gpu], probe: Probe | None) -> None:
    """Checks that nobody else uses the GPUs, and that TensorFlow can use them."""
    if not chosen:
        return
    for state in gpu_lib.read_gpu_states(os.getpid(), chosen):
        if state.fault:
            raise UnfitMachineError(
                f"GPU {state.index} ({state.name}) cannot be read ({state.fault}), so"
                " nobody knows who uses it; reset it (sudo nvidia-smi --gpu-reset), or"
                " hide it with CUDA_VISIBLE_DEVICES"
            )
        if state.is_busy:
            raise UnfitMachineError(_busy(state, chosen))
    if probe is None:
        return
    ids = [gpu.cuda_id for gpu in chosen]
    try:
        gpu_probe.check(probe(ids), ids)
    except gpu_probe.MissingGpuError as error:
        raise UnfitMachineError(str(error)) from error


def _busy(state: GpuState, chosen: Sequence[Gpu]) -> str:
    others = [gpu.cuda_id for gpu in chosen if gpu.index != state.index]
    without = f", or leave it out: CUDA_VISIBLE_DEVICES={','.join(others)}"
    used = f"{state.utilization or 0:.0%} busy".replace("%", " %")
    if state.num_users:
        plural = "" if state.num_users == 1 else "es"
        used = f"used by {state.num_users} other process{plural}"
    return (
        f"GPU {state.index} ({state.name}) is {used}, but a trial needs its GPUs for"
        f" itself; end the others ('nvidia-smi' lists them){without if others else ''}"
    )
