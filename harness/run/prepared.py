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
    """A trial whose directory is ready and whose processes can be started.

    Attributes:
      trial: The trial.
      trial_dir: Its directory.
      processes: The processes that it has.
      command: What starts them; the directory is appended.
      variables: Their environment variables.
      env: The environment record so far.
      gpus: The GPUs that it has; none on a CPU.
      is_client: Whether it is a program that connects by the client.
      started_at: Time of day.
      start_sec: The same, on the monotonic clock.
    """

    trial: PlannedTrial
    trial_dir: Path
    processes: Processes
    command: tuple[str, ...]
    variables: dict[str, str]
    env: Environment
    started_at: str
    start_sec: float
    gpus: tuple[Gpu, ...] = ()
    is_client: bool = False

    @property
    def core(self) -> int:
        """The first core of the trial, on which the canary runs."""
        return self.env.placement.cpusets[0][0]
