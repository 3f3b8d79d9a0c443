"""Names and facts of the workloads, readable without TensorFlow."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetInfo:
    """What a planner needs to know of a preset."""

    name: str
    description: str
    data: str
    per_replica_batch_size: int
    num_warmup_steps: int
    num_measured_steps: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """What a planner needs to know of a workload."""

    name: str
    version: str
    example_unit: str
    description: str
    module: str
    presets: tuple[PresetInfo, ...]
    default_preset: str
    builtin_data: tuple[str, ...]
