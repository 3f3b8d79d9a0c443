"""Inputs: pipelines on the workers, which are restored when a worker comes back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.checkpoint import division
from replicator.core.step import traced_once
from replicator.errors import ReplicatorError
from replicator.inputs.context import (
    InputContext,
    InputFn,
    InputReplicationMode,
    pipeline_contexts,
)
from replicator.inputs.iterator import (
    InputIterator,
    all_read,
    next_batches,
    to_pipeline,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.async_training.connection import Connection


class RemotePipeline:
    """A pipeline as a graph, which a worker turns into a dataset."""

    def __init__(
        self, function: Any, divided: division.Division, num_skipped: int = 0
    ) -> None:
        self.element_spec = function.structured_outputs.element_spec
        self.division = divided
        self._function = function
        self._num_skipped = num_skipped

    def skip(self, num_batches: int) -> RemotePipeline:
        """The pipeline without its first elements; -1 leaves none."""
        return RemotePipeline(self._function, self.division, num_batches)

    def dataset(self) -> tf.data.Dataset:
        """Makes the dataset where it is called."""
        dataset = self._function()
        return dataset.skip(self._num_skipped) if self._num_skipped else dataset

    def __iter__(self) -> Any:
        return iter(self.dataset())


@dataclasses.dataclass(kw_only=True, eq=False)
class WorkerPipelines:
    """The iterators of one worker, and how far it has read them."""

    # What the coordinator knows them by; it makes them again when the worker was lost
    # and is back.
    handle: Any = None
    num_steps: int = 0  # Steps of all dispatches that have ended.
    num_made: int = 0  # How often they were made.


def skip_steps(iterators: Any, num_replicas: int, num_steps: int) -> None:
    """Reads and drops the batches of some steps, on the worker of the iterators."""

    @traced_once
    def skip(source: Any) -> Any:
        def drop(index: tf.Tensor) -> tf.Tensor:
            batch = next_batches(source, num_replicas)
            with tf.control_dependencies([all_read(batch)]):
                return index + 1

        return tf.while_loop(lambda index: index < num_steps, drop, [tf.constant(0)])

    skip(iterators)


class RemoteInputIterator(InputIterator):
    """Pipelines that are traced here and run on the workers."""

    stateless_reason = "its pipelines are on workers, which may be restarted"
    pads_last_step = False

    def _check(self, pipeline: Any) -> Any:
        return pipeline  # was checked when it was traced

    def _get_next(self) -> Any:
        raise ReplicatorError(
            "next() and get_next() cannot read in this process, because the pipelines "
            "are on the workers; pass the iterator to run(), and return values of "
            "interest from the step"
        )


class ServerInputIterator(RemoteInputIterator):
    """The pipelines of every worker.

    ``input_fn`` is called here, once per pipeline, and traced; the pipeline runs on the
    worker that it feeds. A worker that was restarted reads and drops what it has had.

    Attributes:
      source_spec: The type of what one worker's program is given.
    """

    def __init__(
        self,
        input_fn: InputFn,
        mode: InputReplicationMode,
        connection: Connection,
        num_replicas_per_worker: int,
    ) -> None:
        if mode is InputReplicationMode.SINGLE:
            raise ReplicatorError(
                "InputReplicationMode.SINGLE distributes one pipeline to all workers, "
                "but the workers are asynchronous; use PER_WORKER or PER_REPLICA and "
                "shard in input_fn by ctx.input_pipeline_id"
            )
        self._connection = connection
        num_replicas = num_replicas_per_worker * connection.num_workers
        contexts = [
            dataclasses.replace(each, num_replicas_in_sync=num_replicas_per_worker)
            for each in pipeline_contexts(mode, num_replicas, connection.num_workers)
        ]
        self._share = len(contexts) // connection.num_workers
        super().__init__(
            lambda context: traced_dataset(input_fn, context),
            mode,
            num_replicas,
            contexts=contexts,
        )
        self.source_spec = (tf.data.IteratorSpec(self.element_spec),) * self._share

    def _iterate(self, pipelines: Sequence[Any]) -> tuple[Any, ...]:
        """Makes the iterators on the workers; by worker, what knows them there."""
        num_workers = self._connection.num_workers
        batches_per_step = self.num_replicas // num_workers // self._share
        return tuple(
            self._on_worker(
                worker,
                pipelines[worker * self._share : (worker + 1) * self._share],
                batches_per_step,
            )
            for worker in range(num_workers)
        )

    def _on_worker(
        self, worker: int, pipelines: Sequence[RemotePipeline], batches_per_step: int
    ) -> WorkerPipelines:
        found = WorkerPipelines()

        def make() -> Any:
            found.num_made += 1
            num_batches = found.num_steps * batches_per_step
            return tuple(
                iter(pipeline.dataset().skip(num_batches) if num_batches else pipeline)
                for pipeline in pipelines
            )

        found.handle = _tf_compat.create_on_worker(
            self._connection.coordinator, worker, make, ()
        )
        return found

    def _num_begun(self, error: BaseException, num_steps: int) -> int:
        """All that workers were given, as where nobody waits (``schedule``)."""
        return num_steps if isinstance(error, tf.errors.OpError) else 0


def traced_dataset(input_fn: InputFn, context: InputContext) -> RemotePipeline:
    """Calls an input function and keeps its pipeline as a graph."""
    found = []

    def make() -> tf.data.Dataset:
        dataset = to_pipeline(input_fn(context))
        found.append(division.of_dataset(dataset))  # a graph does not tell
        return dataset

    function = tf.function(make, autograph=False).get_concrete_function()
    return RemotePipeline(function, found[0])
