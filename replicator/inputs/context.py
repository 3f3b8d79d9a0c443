"""The argument of an input function: how many pipelines there are, and its index."""

from __future__ import annotations

import dataclasses
import enum
import numbers
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.core.validation import INT32_MAX, INT64_MAX, format_value, is_integer
from replicator.errors import InputModeError, SplitBatchError


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
        raise TypeError(f"mode {format_value(mode)} is not one of {allowed}")


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
                f"global_batch_size {format_value(global_batch_size)} must be an "
                "integer (the examples of one step over all replicas); pass a multiple "
                f"of num_replicas {num_replicas!r}, at most {INT64_MAX}"
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


InputFn = Callable[[InputContext], tf.data.Dataset]


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


def default_data_options(
    *,
    deterministic: bool = True,
    autotune: bool = False,
    num_threads: int | None = None,
) -> tf.data.Options:
    """Returns the ``tf.data`` options that this package recommends.

    Write ``dataset.with_options(default_data_options())`` at the end of an input
    function: by default, the library sets ``autotune`` only. A stock strategy shards no
    second time (``auto_shard_policy`` OFF), and pipelines are parallel over examples
    (``max_intra_op_parallelism`` 1): threads inside one small op are overhead.

    Args:
      deterministic: Whether elements are in order even after parallel maps, so that an
        epoch can be repeated, audited and continued from a checkpoint.
      autotune: Whether parallelism marked ``tf.data.AUTOTUNE`` and buffers are tuned
        while the pipeline runs; without, parallelism is the number of threads. Freeing
        an autotuned iterator that has run for long blocks the whole process for up to a
        minute (TensorFlow 2.21).
      num_threads: Threads of the pipeline's own pool, which otherwise compete with
        those of a step on CPUs; None shares TensorFlow's.

    Returns:
      New options.

    Raises:
      TypeError: ``deterministic`` or ``autotune`` is neither True nor False.
      ValueError: ``num_threads`` is not a positive integer or None.
    """
    for name, flag in (("deterministic", deterministic), ("autotune", autotune)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} {format_value(flag)} must be True or False")
    if num_threads is not None and not is_integer(num_threads, least=1, most=INT32_MAX):
        raise ValueError(
            f"num_threads {format_value(num_threads)} must be an integer of at least "
            "1, or None for TensorFlow's shared threads"
        )
    options = tf.data.Options()
    options.deterministic = deterministic
    options.autotune.enabled = autotune
    options.threading.max_intra_op_parallelism = 1
    if num_threads is not None:
        options.threading.private_threadpool_size = num_threads
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return options


_LIMIT = 1 << 32


def set_determinism(seed: int | None) -> None:
    """Makes training bitwise reproducible, in this process and in new ones.

    Call it first, on every worker with the same seed. It seeds Python, NumPy,
    TensorFlow and Keras, and makes TensorFlow choose deterministic kernels
    (``enable_op_determinism``): they can be slower, an op without one raises an error,
    and ``tf.data`` keeps the order of elements and runs maps with random ops one by
    one. Replicas still draw different streams: each folds its id into the seed. The
    same bits need the same backend, devices, versions, and numbers of replicas and
    threads.

    Args:
      seed: An integer in [0, 2**32); None switches deterministic kernels off again and
        leaves the seeds.

    Raises:
      ValueError: Not such an integer.
    """
    if seed is None:
        _tf_compat.disable_op_determinism()
        return
    if not is_integer(seed, least=0) or seed >= _LIMIT:
        raise ValueError(
            f"seed {format_value(seed)} must be an integer from 0 to {_LIMIT - 1}, or "
            "None to switch deterministic kernels off"
        )
    keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()
