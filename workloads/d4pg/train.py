"""D4PG on the control suite (Barth-Maron et al. 2018), from actors to update.

    python -m workloads.d4pg.train --replicas 2 --steps 50

The step is in ``learner.py``, code for a single device. ``study.py`` attaches this
training to the harness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workloads.common import command, training
from workloads.spec import SYNTHETIC

from . import capacity, control, experience, study
from .evaluator import EvaluatorClient
from .learner import Learner, training_flops

if TYPE_CHECKING:
    import tensorflow as tf

    import replicator
    from workloads.spec import Metric, QualityMetric


class Training(Learner, training.Training):
    """A learner with its actors and replay."""

    def __init__(
        self, repl: replicator.Replicator, config: study.D4PGConfig, **batches: Any
    ) -> None:
        training.Training.__init__(self, repl, config, **batches)
        self._evaluator = None
        self.has_actors = self.data != SYNTHETIC
        self.experiences: list[experience.Experience] = []
        if self.has_actors:
            control.check(self.data)
            capacity.check_learning(config, global_batch_size=self.global_batch_size)
            self._evaluator = EvaluatorClient(self.data, config, seed=self.seed)
        self.environment = (
            self._evaluator.spec
            if self._evaluator
            else experience.synthetic_spec(config)
        )
        Learner.__init__(self, repl, config, self.environment, seed=self.seed)

    def input_fn(self, context: replicator.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(self.global_batch_size)
        if not self.has_actors:
            return experience.synthetic_dataset(self, context, size)
        made = experience.Experience(self, context)
        self.experiences.append(made)
        batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
        return made.dataset(size, num_prefetched=max(batches_per_step, 1))

    def train(self, repl: replicator.Replicator, inputs: Any, step: int) -> Any:
        del repl, step  # the learner has them
        outputs = self.learn(inputs)
        self.pass_on(outputs)
        return outputs

    def pass_on(self, outputs: Any) -> None:
        """Gives priorities to replay, and every few steps finite weights to actors."""
        if not all(math.isfinite(float(value)) for value in outputs["value"]):
            # The critic's loss would not show it before the targets are copied.
            raise FloatingPointError(
                "the policy's actions have no finite value in learner step "
                f"{self.num_steps - 1}: lower option policy_learning_rate="
                f"{self.config.policy_learning_rate!r}"
            )
        for each in self.experiences if self.config.replay == "prioritized" else ():
            for index, error in zip(
                outputs["index"], outputs["divergence"], strict=True
            ):
                each.replay.update_priorities(index.numpy(), error.numpy())
        if self.experiences and self.num_steps % self.config.publish_period == 0:
            weights = self.policy_weights()
            for each in self.experiences:
                each.weights.publish(weights, self.num_steps)

    def evaluate(self, metrics: Sequence[Metric]) -> tuple[QualityMetric, ...]:
        """Measures the mean return of episodes without noise; of actors only."""
        if self._evaluator is None:
            return ()
        return self._evaluator.score(
            [metric for metric in metrics if not metric.is_of_window],
            self.policy_weights(),
        )

    def samples(self) -> bytes | None:
        if self._evaluator is None:
            return None
        return self._evaluator.film(self.policy_weights())

    def flops(self) -> int:
        return training_flops(self.policy, self.critic, self.torso)

    def close(self) -> None:
        for each in self.experiences:
            each.close()
        if self._evaluator is not None:
            self._evaluator.close()


if __name__ == "__main__":
    command.main(__doc__, study.WORKLOAD, Training)
