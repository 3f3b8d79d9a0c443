"""The argument of an input function: how many pipelines there are, and its index."""

from __future__ import annotations

import dataclasses
import enum
import numbers
from typing import Any

from replicator.errors import InputModeError, SplitBatchError
from replicator.validation.arguments import INT64_MAX, shown


class InputReplicationMode(enum.Enum):
    """How many times the input function is called.

    PER_WORKER: once per worker process; its batches go to the replicas round-robin.
    PER_REPLICA: once per replica; each replica reads its own pipeline.
    SINGLE: once in the whole job; its batches go to all replicas round-robin.
    """

    PER_WORKER = "per_worker"
    PER_REPLICA = "per_replica"
    SINGLE = "single"


def check_mode(mode: Any) -> None:
    """Rejects everything except an ``InputReplicationMode``."""
    if not isinstance(mode, InputReplicationMode):
        allowed = ", ".join(str(m) for m in InputReplicationMode)
        raise TypeError(f"mode {shown(mode)} is not one of {allowed}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputContext:
    """What an input function needs to know about its place in the job.

    Attributes:
      num_input_pipelines: Calls of the input function in the whole job.
      input_pipeline_id: Which of them this call is, in [0, num_input_pipelines).
      num_replicas_in_sync: Replicas whose updates are aggregated each step.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Divides a global batch over the replicas.

        Args:
          global_batch_size: Examples per step over all replicas.

        Returns:
          Examples per step of one replica.

        Raises:
          SplitBatchError: It is not divisible by the replicas (nothing is rounded
            silently), or not an integer.
        """
        num_replicas = self.num_replicas_in_sync
        # NumPy integers, such as sizes of arrays, are accepted as well.
        is_number = isinstance(global_batch_size, numbers.Integral)
        if (
            not is_number
            or isinstance(global_batch_size, bool)
            or global_batch_size > INT64_MAX
        ):
            raise SplitBatchError(
                f"global_batch_size {shown(global_batch_size)} must be an integer (the "
                "examples of one step over all replicas); pass a multiple of "
                f"num_replicas {num_replicas!r}, at most {INT64_MAX}"
            )
        global_batch_size = int(global_batch_size)
        share, rest = divmod(global_batch_size, num_replicas)
        if rest or share < 1:
            lower = max(share, 1) * num_replicas
            raise SplitBatchError(
                f"global_batch_size {global_batch_size!r} is not divisible by "
                f"num_replicas {num_replicas!r}: every replica must get the same "
                "number of examples; use a multiple, such as "
                f"{lower} or {lower + num_replicas}"
            )
        return share


def pipeline_contexts(
    mode: InputReplicationMode, num_replicas: int, num_workers: int = 1
) -> list[InputContext]:
    """Returns the contexts of all calls of an input function in the whole job."""
    num_pipelines = {
        InputReplicationMode.PER_WORKER: num_workers,
        InputReplicationMode.PER_REPLICA: num_replicas,
        InputReplicationMode.SINGLE: 1,
    }[mode]
    return [
        InputContext(
            num_input_pipelines=num_pipelines,
            input_pipeline_id=index,
            num_replicas_in_sync=num_replicas,
        )
        for index in range(num_pipelines)
    ]


def own_contexts(
    mode: InputReplicationMode, num_replicas: int, num_workers: int, worker_id: int
) -> list[InputContext]:
    """Returns the contexts of the input functions of one worker."""
    if mode is InputReplicationMode.SINGLE and num_workers > 1:
        raise InputModeError(
            f"{mode} does not work with between-graph replication: each of the "
            f"{num_workers} workers runs its own program, and none feeds the "
            "others; use PER_WORKER or PER_REPLICA, and shard by "
            "ctx.num_input_pipelines and ctx.input_pipeline_id"
        )
    contexts = pipeline_contexts(mode, num_replicas, num_workers)
    share = len(contexts) // num_workers
    return contexts[worker_id * share : (worker_id + 1) * share]
