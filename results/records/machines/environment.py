"""Where one trial ran: its machine, its software, and its cores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from results.records import limits
from results.records.bounds import (
    Amount,
    Cores,
    Fraction,
    Name,
    Text,
    Total,
)
from results.records.machines.gpu_record import GpuUses
from results.records.machines.gpu_settings import AllGpuSettings
from results.records.machines.machine_record import MachineState
from results.records.record_base import Record

CpuSet = Annotated[
    tuple[Annotated[int, Field(ge=0, le=limits.MAX_REPLICAS)], ...],
    Field(max_length=limits.MAX_REPLICAS),
]


def _is_none(value: object) -> bool:
    return value is None


class Placement(Record):
    """Cores and threads of a trial's processes."""

    cpusets: tuple[CpuSet, ...] = Field(
        max_length=2 * limits.MAX_REPLICAS,
        description="per process, disjoint where processes run replicas",
    )
    cores_per_replica: Cores
    num_intra_op_threads: Cores
    num_inter_op_threads: Cores
    num_available_cores: Cores
    cgroup_quota_cores: Amount | None = None
    is_oversubscribed: bool
    device_sharing: Literal["exclusive", "shared"]


class Environment(Record):
    """Facts about the machine and software of one trial, without the host name."""

    schema_version: Literal[6] = 6
    fingerprint: Name = Field(
        description="hash of the facts that must match to compare"
    )
    cpu_model: Name
    num_physical_cores: Cores | None
    num_logical_cores: Cores
    memory_bytes: Total
    gpus: tuple[Name, ...] = Field(default=(), max_length=1_000)
    kernel: Name
    python_version: Name
    packages: dict[Name, Name] = Field(max_length=1_000)
    environment_variables: dict[Name, Text] = Field(
        default_factory=dict, max_length=1_000
    )
    load_average_before: Amount | None = None
    load_average_after: Amount | None = None
    canary_before_sec: Amount | None = None
    canary_after_sec: Amount | None = None
    foreign_cpu_fraction: Fraction | None = Field(
        default=None, description="CPU time of other processes during the trial, 0..1"
    )
    stolen_cpu_fraction: Fraction | None = Field(
        default=None, description="CPU time given to other guests of the hypervisor"
    )
    gpu_uses: GpuUses = Field(
        default=(), description="of the trial's GPUs, over the measured window"
    )
    gpu_settings: AllGpuSettings = Field(
        default=(), description="of the trial's GPUs, before it started"
    )
    nccl_version: Name | None = Field(
        default=None,
        exclude_if=_is_none,
        description="that its processes had loaded; several are joined by '+'",
    )
    machine_state: MachineState | None = None
    placement: Placement

    @property
    def machine_name(self) -> str:
        """The machine in words: its processor, cores and GPUs."""
        cores = f"{self.placement.num_available_cores} cores"
        return ", ".join([self.cpu_model, cores, *sorted(set(self.gpus))])
