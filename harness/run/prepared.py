"""A trial that is prepared, and what starts its processes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.gpus import Gpu
    from harness.placement.processes import Processes
    from results.records.models import Environment, PlannedTrial


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A trial whose directory is ready and whose processes can be started."""

    trial: PlannedTrial  # The trial.
    trial_dir: Path  # Its directory.
    processes: Processes  # The processes that it has.
    command: tuple[str, ...]  # What starts them; the directory is appended.
    variables: dict[str, str]  # Their environment variables.
    env: Environment  # The environment record so far.
    started_at: str  # Time of day.
    start_sec: float  # The same, on the monotonic clock.
    gpus: tuple[Gpu, ...] = ()  # The GPUs that it has; none on a CPU.
    is_client: bool = False  # Whether it is a program that connects by the client.

    @property
    def core(self) -> int:
        """The first core of the trial, on which the canary runs."""
        return self.env.placement.cpusets[0][0]
