"""The cases of a sweep: replica counts, batch sizes, and which modes share a case."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from harness.errors import PlanError
from harness.planning import batches
from harness.planning.estimate import PlannedCase
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.catalog import BackendInfo, PresetInfo
    from harness.planning.request import SweepRequest

MAX_DEFAULT_REPLICAS: Final = 8
"""The largest default replica count, to keep the default sweep short."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The resources that a plan depends on."""

    num_available_cores: int  # Logical CPUs that can be busy at once.
    num_gpus: int | None = None  # GPUs, or None when the plan does not use them.
    # Environment variables that can change the numbers.
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def choose_replicas(
    request: SweepRequest,
    machine: Machine,
    preset: PresetInfo,
    unit: int,
    devices_per_replica: int = 1,
) -> tuple[tuple[int, ...], list[str]]:
    """Returns the replica counts, ascending, and a note where they were chosen."""
    is_gpu = request.device == "gpu"
    if is_gpu and not machine.num_gpus:
        raise PlanError(
            "--device gpu: this machine shows 0 GPUs (NVIDIA driver missing, or hidden"
            " by CUDA_VISIBLE_DEVICES); use --device cpu"
        )
    num_devices = machine.num_gpus if is_gpu else machine.num_available_cores
    assert num_devices is not None
    replicas = request.replicas
    if replicas is not None:
        if is_gpu and replicas[-1] > num_devices:
            raise PlanError(
                f"--replicas needs {replicas[-1]} GPUs, but this machine shows"
                f" {num_devices}; use at most --replicas {num_devices}"
            )
        return replicas, []
    limit = max(1, min(num_devices // devices_per_replica, MAX_DEFAULT_REPLICAS))
    global_batch_size = None
    if ScalingMode.STRONG in request.modes:
        global_batch_size = request.global_batch_size or (
            request.per_replica_batch_size or preset.per_replica_batch_size
        )
    counts = []
    count = 1
    while count <= limit and (
        global_batch_size is None or global_batch_size % (count * unit) == 0
    ):
        counts.append(count)
        count *= 2
    name = "GPUs" if is_gpu else "cores"
    listed = ",".join(str(n) for n in counts)
    return tuple(counts), [f"replicas {listed}: default for {num_devices} {name}"]


def batch_sizes(
    request: SweepRequest, preset: PresetInfo, baseline: int
) -> dict[ScalingMode, int]:
    """Returns the batch size that each scaling mode keeps."""
    per_replica = request.per_replica_batch_size or preset.per_replica_batch_size
    return {
        ScalingMode.WEAK: per_replica,
        ScalingMode.STRONG: request.global_batch_size or per_replica * baseline,
    }


def make_cases(
    backends: Sequence[BackendInfo],
    replicas: Sequence[int],
    sizes: dict[ScalingMode, int],
    modes: Sequence[ScalingMode],
) -> tuple[list[PlannedCase], list[str]]:
    """Returns the distinct cases, and a note for each backend that lacks some."""
    modes_of: dict[tuple[str, int, int], list[ScalingMode]] = {}
    notes = []
    for backend in backends:
        counts = [n for n in replicas if n <= (backend.max_replicas or n)]
        is_any_left_out = len(counts) < len(replicas)
        if not counts:
            raise PlanError(
                f"backend {backend.name!r} runs at most {backend.max_replicas}"
                f" replica(s), but the smallest of --replicas is {replicas[0]}; add 1"
                f" to --replicas, or leave {backend.name!r} out"
            )
        if is_any_left_out:
            notes.append(
                f"backend {backend.name}: planned at"
                f" {','.join(str(n) for n in counts)} replica(s) only; it runs at most"
                f" {backend.max_replicas}"
            )
        for num_replicas in counts:
            for mode in modes:
                if mode is ScalingMode.WEAK:
                    per_replica = sizes[mode]
                else:
                    per_replica = batches.divide(sizes[mode], num_replicas)
                key = (backend.name, num_replicas, per_replica)
                modes_of.setdefault(key, []).append(mode)
    return [PlannedCase(*key, tuple(modes)) for key, modes in modes_of.items()], notes
