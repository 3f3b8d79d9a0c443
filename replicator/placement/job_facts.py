"""What the job is and what this process is in it: a part of the backend contract."""

from __future__ import annotations

import functools

from replicator.validation.maker import Maker


class JobFacts:
    """Replicas and workers of a job, and which of them this process has.

    Attributes:
      num_replicas: Replicas of the whole job.
      first_replica_id: Id of the first local replica.
      num_workers: Worker processes of the job, usually one per machine.
      worker_id: Index of this process among them.
      logical_devices_per_replica: Devices that one replica is split over.
      without_communication: Whether this is a measuring control: its replicas do not
        communicate, and diverge.
    """

    num_replicas: int
    first_replica_id: int = 0
    num_workers: int = 1
    worker_id: int = 0
    logical_devices_per_replica: int = 1
    without_communication: bool = False
    _wraps_alike: bool = True

    @functools.cached_property
    def maker(self) -> Maker:
        """What the optimizers, inputs and values of this replicator carry."""
        return Maker(
            name=type(self).__name__,
            num_replicas=self.num_replicas,
            wraps_alike=self._wraps_alike and not self.without_communication,
        )

    @property
    def num_local_replicas(self) -> int:
        """Replicas that this process runs."""
        return self.num_replicas

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose updates are aggregated each step."""
        return self.num_replicas

    @property
    def num_programs(self) -> int:
        """Processes that run the user's program, without workers that only serve."""
        return self.num_workers

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the job's checkpoints and logs."""
        return self.worker_id == 0
