"""The arguments of a sweep, before planning."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from harness.planning import defaults
from results.records.models import Allocator, Control, OptionValue, Order, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.planning.source_tree import SourceTree


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """One requested sweep; None means that the default is derived.

    Attributes:
      workload: Name in the catalogue.
      backends: Names in the catalogue.
      replicas: Replica counts, ascending; by default powers of two up to the cores
        (or GPUs), at most 8, those by which the global batch is divisible.
      modes: Scaling modes.
      repeats: Repetitions of each case, in a relay its generations; by default 5 in a
        relay, 3 in sequence.
      order: Whether cases take turns or run in sequence; by default a relay on CPUs.
      minutes: Time for a relay, start-up included.
      max_rounds: The most rounds of a generation.
      target: Half width of the primary contrast's interval at which a relay ends, as a
        fraction; None for a fixed number of generations.
      efficiency_target: Parallel efficiency that the verdict tests.
      allocator: What glibc does with freed memory; by default it keeps it.
      controls: Cases that leave something out, to explain what the others cost; only
        in a relay.
      preset: Name; by default the workload's, or ``gpu`` on GPUs.
      data: Data set; by default the preset's.
      data_dir: Directory of TFDS data sets; by default that of TFDS.
      per_replica_batch_size: Weak scaling's constant; by default the preset's.
      global_batch_size: Strong scaling's constant; by default
        ``per_replica_batch_size`` times the baseline's replicas.
      num_warmup_steps: By default the preset's.
      num_measured_steps: By default the preset's.
      steps_per_sync: Steps that are started before their losses are read; by default 1
        on CPUs, 10 on GPUs, and 1 where the host uses the results of each step.
      device: Kind of device of the replicas.
      budget: The budget of each quality run, such as ``60s``, or ``none``; by default
        the preset's, on the first backend only.
      num_evaluations: Of a quality run; by default the preset's.
      quality_repeats: Quality runs of each case.
      is_quality_only: Whether nothing but the quality runs is planned.
      is_evaluated: Whether held-out quality is measured; by default for all data but
        ``synthetic``, which has none.
      options: The workload's own options.
      seed: Seed of the sweep.
      timeout_sec: Time limit of one trial.
      is_matched: Whether N replicas are matched with one before a number counts.
      baseline: Another tree of sources, in which every case is measured as well.
    """

    workload: str
    backends: tuple[str, ...] = defaults.BACKENDS
    replicas: tuple[int, ...] | None = None
    modes: tuple[ScalingMode, ...] = tuple(map(ScalingMode, defaults.MODES))
    repeats: int | None = None
    order: Order | None = None
    minutes: float | None = None
    max_rounds: int | None = None
    target: float | None = None
    allocator: Allocator | None = None
    efficiency_target: float = defaults.EFFICIENCY_TARGET
    controls: tuple[Control, ...] = ()
    preset: str | None = None
    data: str | None = None
    data_dir: Path | None = None
    per_replica_batch_size: int | None = None
    global_batch_size: int | None = None
    num_warmup_steps: int | None = None
    num_measured_steps: int | None = None
    steps_per_sync: int | None = None
    device: Literal["cpu", "gpu"] = defaults.DEVICE
    budget: str | None = None
    num_evaluations: int | None = None
    quality_repeats: int = defaults.QUALITY_REPEATS
    is_quality_only: bool = False
    is_evaluated: bool | None = None
    options: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    seed: int = defaults.SEED
    timeout_sec: float = defaults.TIMEOUT_SEC
    is_matched: bool = True
    baseline: SourceTree | None = None
