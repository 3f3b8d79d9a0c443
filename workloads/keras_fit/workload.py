"""``fit`` of Keras as a workload: a compiled model on a replicator's strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workloads.classifier import ClassifierProgram
from workloads.keras_fit import models
from workloads.keras_fit.loop_program import KerasLoopProgram
from workloads.program import ImageWorkload
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    import replicator
    from workloads.data.sources import Examples, Source
    from workloads.keras_fit.config import KerasFitConfig


class KerasFitProgram(ClassifierProgram, KerasLoopProgram):
    """A classifier of images; see ``KerasLoopProgram``."""

    def __init__(
        self,
        repl: replicator.Replicator,
        config: KerasFitConfig,
        *,
        source: Source | None,
        per_replica_batch_size: int,
        seed: int,
    ) -> None:
        self._is_fit = config.loop == "fit"
        super().__init__(
            repl,
            config,
            source=source,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )
        self._take(repl, lambda: models.make(config, is_matched=self.is_matched))

    def _input_mode(self) -> replicator.InputReplicationMode:
        return self._loop_input_mode()

    @staticmethod
    def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
        return batch["image"], batch["label"]

    def _kept(self, batch: Any) -> dict[str, Any]:
        return {"example_id": batch["example_id"]}

    def _steps_per_epoch(self) -> int:
        if self.source is None:
            return super()._steps_per_epoch()
        return max(1, self.source.num_train_examples // self.global_batch_size)

    def _check_consumed(self, source: Examples) -> SanityCheck:
        """Counts the updates: examples have no names in ``fit``."""
        if not self._is_fit:
            return super()._check_consumed(source)
        count = int(self.optimizer.iterations.numpy())
        return SanityCheck(
            name="fit_updates_once_per_step",
            is_passed=count == self._num_steps,
            detail=f"{count} updates in {self._num_steps} steps",
        )


WORKLOAD = ImageWorkload("keras_fit", KerasFitProgram)
