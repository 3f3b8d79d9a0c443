"""What the programs of all workloads on images have in common."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import replicator
from workloads import catalog
from workloads.data import audit, pipeline
from workloads.data.sources import open_source
from workloads.spec import SanityCheck, StepProgram, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tensorflow as tf

    from workloads.data.sources import Source

SYNTHETIC = "synthetic"


class ImageWorkload(Workload):
    """A workload of the catalogue that reads labelled images."""

    def __init__(self, name: str) -> None:
        info = catalog.WORKLOADS[name]
        self.name = info.name
        self.version = info.version
        self.example_unit = info.example_unit

    def prepare(self, *, data: str) -> None:
        """Writes the embedded digits once per machine; see ``Workload.prepare``."""
        if data != SYNTHETIC:
            open_source(data)


class ImageProgram(StepProgram):
    """Feeds labelled images to a replicator, and checks what came of it.

    Attributes:
      source: The data set, or None for synthetic data.
    """

    def __init__(
        self,
        repl: replicator.Replicator,
        *,
        source: Source | None,
        config: pipeline.PipelineConfig,
        num_classes: int,
    ) -> None:
        """Makes the pipelines.

        Args:
          repl: The replicator.
          source: The data set, or None for synthetic data.
          config: Of the pipelines.
          num_classes: Labels of synthetic data.
        """
        self.per_replica_batch_size = config.per_replica_batch_size
        self.global_batch_size = (
            config.per_replica_batch_size * repl.num_replicas_in_sync
        )
        self.source = source
        self._repl = repl
        self._pipeline = config
        self._num_classes = num_classes
        self._contexts: list[replicator.InputContext] = []
        self._inputs = repl.make_input_iterator(self._input_fn)
        # Ids stay on their devices until sanity(): reading them here would be timed.
        self._consumed: list[tuple[int, Any]] = []
        self._num_steps = 0
        self._last_loss = math.nan

    def _input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        self._contexts.append(context)
        if self.source is None:
            return pipeline.synthetic_dataset(
                self._pipeline, num_classes=self._num_classes
            )
        return pipeline.train_dataset(self.source, context, self._pipeline)

    def batches(self) -> Iterator[Any]:
        """Reads the batches of all replicas without training on them."""
        while True:
            yield self._inputs.get_next()

    def _finish(self, outputs: dict[str, Any], num_steps: int) -> float:
        """Waits for the device work of steps, keeps their ids, returns the mean loss.

        Args:
          outputs: With ``loss`` and ``example_id``, per replica.
          num_steps: Steps that were run.
        """
        # Reading the losses waits for the replicas; updates are part of the same graph.
        self._last_loss = float(self._repl.reduce("mean", outputs["loss"]))
        self._num_steps += num_steps
        num_consumed = self._num_steps * self.global_batch_size
        is_first = not self._consumed
        if self.source is not None and (
            is_first or num_consumed <= self._first_epoch_size(self.source)
        ):
            self._consumed.append((num_consumed, outputs["example_id"]))
        return self._last_loss

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss, the copies of the variables, and the examples."""
        checks = [self._check_loss(), self._check_sync()]
        if self.source is not None:
            checks.append(audit.check_shards(self.source, self._contexts))
            checks.append(self._check_consumed(self.source))
        return tuple(checks)

    def _check_consumed(self, source: Source) -> SanityCheck:
        steps = (
            (num_consumed, [int(i) for ids in per_replica for i in ids.numpy()])
            for num_consumed, per_replica in self._consumed
        )
        return audit.check_consumed(
            steps, first_epoch_size=self._first_epoch_size(source)
        )

    def _first_epoch_size(self, source: Source) -> int:
        # Every pipeline gives the same number of examples to a step, so the smallest
        # share ends first.
        num_pipelines = self._contexts[0].num_input_pipelines
        return source.num_train_examples // num_pipelines * num_pipelines

    def _check_loss(self) -> SanityCheck:
        return SanityCheck(
            name="loss_is_finite",
            is_passed=math.isfinite(self._last_loss),
            detail=f"last loss {self._last_loss}",
        )

    def _check_sync(self) -> SanityCheck:
        count = self._repl.num_replicas
        try:
            self._repl.assert_in_sync()
        except replicator.ReplicatorError as error:
            is_passed, detail = False, str(error)
        else:
            is_passed, detail = True, f"variables of {count} replicas are identical"
        return SanityCheck(name="replicas_in_sync", is_passed=is_passed, detail=detail)

    def agree(self, value: int) -> int:
        """Returns the value of worker 0, on all of them."""
        return int(self._repl.gather_bytes(str(value).encode("ascii"))[0])

    def explain(self) -> str:
        """Returns the replicator's account of the collectives in one step."""
        return self._repl.explain()
