"""Options for tf.data pipelines that feed replicas."""

from __future__ import annotations

import tensorflow as tf

from replicator.validation.arguments import INT32_MAX, is_integer, shown


def default_data_options(
    *,
    deterministic: bool = True,
    autotune: bool = False,
    num_threads: int | None = None,
) -> tf.data.Options:
    """Returns the ``tf.data`` options that this package recommends.

    Write ``dataset.with_options(default_data_options())`` at the end of an input
    function: by default, the library sets ``autotune`` only. The options and reasons:

    - ``deterministic``: elements are in order even after parallel maps, so that an
      epoch can be repeated, audited and continued from a checkpoint.
    - ``autotune.enabled``: off, also if an input function does not set it. With
      autotuning, parallelism marked ``tf.data.AUTOTUNE`` adapts at run time; without,
      it is the number of threads. Freeing an autotuned iterator that has run for long
      blocks the whole process for up to a minute (TensorFlow 2.21).
    - ``experimental_distribute.auto_shard_policy`` OFF: the input function shards by
      ``ctx``; a stock strategy must not shard a second time.
    - ``threading.private_threadpool_size`` (``num_threads``): with replicas on CPUs,
      the pipeline's threads otherwise compete with those of the step. None leaves the
      shared pool.
    - ``threading.max_intra_op_parallelism`` 1: pipelines are parallel over examples;
      threads inside one small op are overhead only.

    Args:
      deterministic: Whether the order of elements must not depend on timing.
      autotune: Whether parallelism and buffers are tuned while the pipeline runs.
      num_threads: Threads of the pipeline's own pool; None shares TensorFlow's.

    Returns:
      New options.

    Raises:
      TypeError: ``deterministic`` or ``autotune`` is neither True nor False.
      ValueError: ``num_threads`` is not a positive integer or None.
    """
    for name, flag in (("deterministic", deterministic), ("autotune", autotune)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} {shown(flag)} must be True or False")
    if num_threads is not None and not is_integer(num_threads, least=1, most=INT32_MAX):
        raise ValueError(
            f"num_threads {shown(num_threads)} must be an integer of at least 1, or "
            "None for TensorFlow's shared threads"
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
