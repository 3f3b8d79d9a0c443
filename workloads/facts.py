"""What the catalogue of workloads says of each, readable without TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TFDS_NAMES: Final = "workloads.data.names"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetInfo:
    """Facts about a preset for the planner."""

    name: str  # The name on the command line.
    description: str  # One line.
    data: str  # The default data set.
    per_replica_batch_size: int  # Examples per replica and step.
    num_warmup_steps: int  # Steps before the measured window.
    num_measured_steps: int  # Steps of the measured window.
    # Training budget of a quality run of the default sweep, such as ``40s``; empty if
    # the default sweep has none.
    budget: str = ""
    num_evaluations: int = 5  # Number of evaluations in a quality run.
    # Options that a plan adds to those of the user, and records.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """What a workload changes so that N replicas can be matched with one."""

    options: Mapping[str, Any]  # Options in place of the requested ones.
    remark: str  # What this changes, in words.
    data: str = ""  # The data in place of the requested one; empty if it stays.
    # Options that the one replica does not have: it runs on one device, whatever the
    # others are split over.
    of_pipelines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """Facts about a workload for the planner."""

    name: str  # The name on the command line.
    version: str  # Changes whenever the meaning of a measured number changes.
    example_unit: str  # Plural unit of an example, such as ``images``.
    description: str  # One line.
    # Module whose attribute ``WORKLOAD`` is the workload; needs TensorFlow.
    module: str
    # Module whose ``make_config`` checks options; without TensorFlow.
    config_module: str
    # Module whose ``METRICS`` are all that the workload measures; without TensorFlow.
    metrics_module: str
    presets: tuple[PresetInfo, ...]  # The presets, smallest first.
    default_preset: str  # The preset if none is given.
    # Data sets that need neither network nor preparation by the user.
    builtin_data: tuple[str, ...]
    # Description of the other allowed data names.
    other_data: str = "a TFDS name or folder:PATH"
    # Module whose ``check`` checks all other names; without TensorFlow.
    data_module: str = TFDS_NAMES
    # Module whose ``check`` says whether this machine can run a plan; without
    # TensorFlow. Empty if any machine can.
    machine_module: str = ""
    # Why the host uses the results of each step before the next, so that steps cannot
    # be queued; empty if they can.
    syncs_because: str = ""
    needs: tuple[str, ...] = ()  # Capabilities of backends without which it cannot run.
    # Why its steps cannot leave out their update, or empty.
    no_update_because: str = ""
    # How N replicas are matched with one; None if they cannot be.
    matching: Matching | None = None
    # Why they cannot, where there is no ``matching``.
    not_matched_because: str = "the workload does not say how it can be"
    # Options of whose product every batch of a replica is a multiple, such as the
    # tokens of a sequence.
    batch_divisors: tuple[str, ...] = ()
    # Whether a step does, outside of its pipeline. Each backend has its own numbers
    # then, so its losses are not those of another.
    draws_random_numbers: bool = False
    # Whether its models do so much that, after one step, losses of two right backends
    # differ. N replicas are matched with one in float64 then.
    amplifies_rounding: bool = False
    # Option that makes a step draw some unless it is 0; empty if none does.
    draws_with: str = ""
    # Module whose ``held`` says what each replica keeps of the weights, from a
    # configuration; without TensorFlow. Empty if that is not counted.
    memory_module: str = ""
