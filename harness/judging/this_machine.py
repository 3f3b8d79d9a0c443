"""The fingerprint that trials of this machine would have, before any has run."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from harness.machine import environment, gpu_choice, machine_state
from harness.machine.topology import read_topology
from harness.placement import allocation
from harness.placement.processes import processes_of_trial

if TYPE_CHECKING:
    from harness.machine.gpus import Gpu
    from results.records.models import TrialSpec


def fingerprint(spec: TrialSpec) -> str:
    """Returns the fingerprint of this machine as the environment record has it."""
    chosen: tuple[Gpu, ...] = ()
    if spec.device == "gpu":
        chosen = gpu_choice.choose(gpu_choice.visible_gpus(), spec.num_replicas)
    placement = allocation.place(
        read_topology(),
        num_replicas=spec.num_replicas,
        cores_per_replica=spec.cores_per_replica,
        devices_per_replica=spec.devices_per_replica,
        device=spec.device,
        processes=processes_of_trial(spec),
        gpu_nodes=[gpu.node for gpu in chosen],
    )
    cores = [*itertools.chain(*placement.cpusets)]
    record = environment.read_environment(
        placement,
        os.environ,
        gpus=tuple(gpu.name for gpu in chosen),
        inherited=os.environ,
        state=machine_state.read_machine_state(cores),
    )
    return record.fingerprint
