"""What the catalogue of workloads says of each, readable without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TFDS_NAMES: Final = "workloads.data.names"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetInfo:
    """Facts about a preset for the planner.

    Attributes:
      name: The name on the command line.
      description: One line.
      data: The default data set.
      per_replica_batch_size: Examples per replica and step.
      num_warmup_steps: Steps before the measured window.
      num_measured_steps: Steps of the measured window.
      budget: Training budget of a quality run of the default sweep, such as ``40s``;
        empty if the default sweep has none.
      num_evaluations: Number of evaluations in a quality run.
      options: Options that a plan adds to those of the user, and records.
    """

    name: str
    description: str
    data: str
    per_replica_batch_size: int
    num_warmup_steps: int
    num_measured_steps: int
    budget: str = ""
    num_evaluations: int = 5
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """What a workload changes so that N replicas can be matched with one.

    Attributes:
      options: Options in place of the requested ones.
      data: The data in place of the requested one; empty if it stays.
      remark: What this changes, in words.
      of_pipelines: Options that the one replica does not have: it runs on one device,
        whatever the others are split over.
    """

    options: Mapping[str, Any]
    remark: str
    data: str = ""
    of_pipelines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """Facts about a workload for the planner.

    Attributes:
      name: The name on the command line.
      version: Changes whenever the meaning of a measured number changes.
      example_unit: Plural unit of an example, such as ``images``.
      description: One line.
      module: Module whose attribute ``WORKLOAD`` is the workload; needs TensorFlow.
      config_module: Module whose ``make_config`` checks options; without TensorFlow.
      metrics_module: Module whose ``METRICS`` are all that the workload measures;
        without TensorFlow.
      presets: The presets, smallest first.
      default_preset: The preset if none is given.
      builtin_data: Data sets that need neither network nor preparation by the user.
      other_data: Description of the other allowed data names.
      data_module: Module whose ``check`` checks all other names; without TensorFlow.
      machine_module: Module whose ``check`` says whether this machine can run a plan;
        without TensorFlow. Empty if any machine can.
      syncs_because: Why the host uses the results of each step before the next, so
        that steps cannot be queued; empty if they can.
      needs: Capabilities of backends without which it cannot run.
      no_update_because: Why its steps cannot leave out their update, or empty.
      matching: How N replicas are matched with one; None if they cannot be.
      not_matched_because: Why they cannot, where there is no ``matching``.
      batch_divisors: Options of whose product every batch of a replica is a multiple,
        such as the tokens of a sequence.
      draws_random_numbers: Whether a step does, outside of its pipeline. Each backend
        has its own numbers then, so its losses are not those of another.
      amplifies_rounding: Whether its models do so much that, after one step, losses of
        two right backends differ. N replicas are matched with one in float64 then.
      memory_module: Module whose ``held`` says what each replica keeps of the weights,
        from a configuration; without TensorFlow. Empty if that is not counted.
      draws_with: Option that makes a step draw some unless it is 0; empty if none does.
    """

    name: str
    version: str
    example_unit: str
    description: str
    module: str
    config_module: str
    metrics_module: str
    presets: tuple[PresetInfo, ...]
    default_preset: str
    builtin_data: tuple[str, ...]
    other_data: str = "a TFDS name or folder:PATH"
    data_module: str = TFDS_NAMES
    machine_module: str = ""
    syncs_because: str = ""
    needs: tuple[str, ...] = ()
    no_update_because: str = ""
    matching: Matching | None = None
    not_matched_because: str = "the workload does not say how it can be"
    batch_divisors: tuple[str, ...] = ()
    draws_random_numbers: bool = False
    amplifies_rounding: bool = False
    draws_with: str = ""
    memory_module: str = ""
