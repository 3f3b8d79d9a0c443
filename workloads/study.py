"""Attaches a training that stands by itself (``workloads/NAME/train.py``) to trials.

The planner imports this module, so TensorFlow is imported when something is built.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workloads.spec import SYNTHETIC, StepProgram, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import replicator
    from workloads.spec import QualityMetric, SanityCheck, WorkloadInfo


class Study(Workload):
    """A workload of a training; ``workloads/NAME/study.py`` declares one.

    Args:
      info: Facts for the planner.
      train: Module whose ``Training`` has ``config``, ``source``, ``input_fn``,
        ``step_fn`` and ``trackables``.
      flops: Floating-point operations of one example in a step; None if not counted.
      evaluate: Measures what a training has learned; not called on synthetic data.
      prepare: Prepares a data set by its name; None to open it.
      check: Checks the data that was read, besides what all programs check.
      program: ``MODULE:CLASS`` of what is stepped and timed.
    """

    def __init__(
        self,
        info: WorkloadInfo,
        *,
        train: str,
        flops: Callable[[Any], int | None] = lambda _: None,
        evaluate: Callable[[Any], tuple[QualityMetric, ...]] | None = None,
        prepare: Callable[[str], object] | None = None,
        check: Callable[[Any], SanityCheck] | None = None,
        program: str = "workloads.program:TrainingProgram",
    ) -> None:
        self.name, self.version = info.name, info.version
        self.example_unit = info.example_unit
        self.flops, self.evaluate, self.check = flops, evaluate, check
        self._info, self._train = info, train
        self._prepare, self._program = prepare, program

    def prepare(self, *, data: str) -> None:
        """Prepares the data set once per machine; see ``Workload.prepare``."""
        if data == SYNTHETIC:
            return
        if self._prepare is not None:
            self._prepare(data)
            return
        from workloads.data.sources import open_source

        open_source(data)

    def build(
        self,
        replicator: replicator.Replicator,
        *,
        preset: str,
        data: str,
        per_replica_batch_size: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> StepProgram:
        """Builds the training on ``replicator``; see ``Workload.build``."""
        settings: Any = importlib.import_module(self._info.config_module)
        config = settings.make_config(preset, options)
        if per_replica_batch_size < 1 and not self._info.batch_divisors:
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} must be at least 1"
            )
        train: Any = importlib.import_module(self._train)
        training = train.Training(
            replicator,
            config,
            data=data,
            per_replica_batch_size=per_replica_batch_size,
            seed=seed,
        )
        module, _, name = self._program.partition(":")
        made: StepProgram = getattr(importlib.import_module(module), name)(
            replicator, training, self
        )
        return made
