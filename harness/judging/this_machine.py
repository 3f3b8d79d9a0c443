"""The fingerprint that trials of this machine would have, before any has run."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from harness import catalog
from harness.machine import environment, gpus, machine_state
from harness.machine.topology import read_topology
from harness.placement import allocation
from harness.placement.processes import processes_of

if TYPE_CHECKING:
    from results.records import TrialSpec


def fingerprint(spec: TrialSpec) -> str:
    """Returns the fingerprint of this machine as the environment record has it."""
    placement = allocation.place(
        read_topology(),
        num_replicas=spec.num_replicas,
        cores_per_replica=spec.cores_per_replica,
        device=spec.device,
        processes=processes_of(catalog.backend(spec.backend), spec.num_replicas),
    )
    names = gpus.gpu_names() if spec.device == "gpu" else ()
    cores = [*itertools.chain(*placement.cpusets)]
    record = environment.read_environment(
        placement,
        os.environ,
        gpus=names,
        inherited=os.environ,
        state=machine_state.read_machine_state(cores),
    )
    return record.fingerprint
