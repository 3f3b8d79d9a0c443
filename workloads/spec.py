"""The interface between a workload and the harness."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import replicator


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SanityCheck:
    """One correctness check: a number whose sanity check failed is not a result."""

    name: str
    is_passed: bool
    detail: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QualityMetric:
    """A learning-quality figure: value, unit, count n and its interval.

    ``protocol`` says in one line what else the figure depends on, such as the network
    that scores images; figures of two protocols share no axis. Empty if it
    depends on nothing else.
    """

    name: str
    value: float
    unit: str
    num_examples: int
    low: float
    high: float
    confidence: float
    method: str
    protocol: str = ""


class StepProgram(abc.ABC):
    """A workload built on one replicator: the object that is stepped and timed.

    Attributes:
      per_replica_batch_size: Examples one replica consumes in one step.
      global_batch_size: Examples all replicas consume in one step.
      num_parameters: Trainable scalars of the model (one copy).
      flops_per_example: Floating-point operations of one example in a training step, by
        the model alone: two per multiply-add; None if they were not counted.
      compute_dtype: Number type of most of them.
    """

    per_replica_batch_size: int
    global_batch_size: int
    num_parameters: int
    flops_per_example: int | None = None
    compute_dtype: str = "float32"

    @abc.abstractmethod
    def run(self, num_steps: int = 1) -> float:
        """Runs steps and returns the last loss (mean over the global batch).

        Returns after all device work is finished, so a clock read next to the call
        measures the step.
        """

    def dispatch(self) -> Callable[[], float]:
        """Starts a step; returns a function that waits for it and returns its loss.

        Several steps can be started before the first is waited for, which keeps a GPU
        busy while the host prepares the next one; wait in the order of the steps.
        Programs that use the results of each step on the host have ended it when this
        returns.
        """
        loss = self.run()
        return lambda: loss

    @abc.abstractmethod
    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Measures quality on held-out data; outside every timed window."""

    def samples(self) -> bytes | None:
        """Returns a picture of what the program makes, as PNG, or None."""
        return None

    def start_window(self) -> None:  # noqa: B027 - most programs count nothing
        """Starts the window that ``window_metrics`` describes.

        Called on every process, right before the first measured step.
        """

    def pause(self) -> None:  # noqa: B027 - most programs do nothing between steps
        """Stops what runs in the background, such as actors, until ``resume``.

        In a relay, every process calls this between its turns, so that a waiting
        program does not disturb the one that is measured. The time until ``resume``
        is not part of the window.
        """

    def resume(self) -> None:  # noqa: B027 - most programs do nothing between steps
        """Continues what ``pause`` stopped."""

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns further metrics of the steps since ``start_window``.

        Rates and fractions of the whole trial, besides the throughput: every process
        calls this, outside of every timed window, and gets the same values.
        """
        return ()

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of the whole trial so far.

        Every process calls this. None if the workload has no environment.
        """
        return None

    def losses_of_replicas(self) -> tuple[float, ...]:
        """Returns the losses of the last step, one per replica of the whole trial.

        Every process calls this. Empty if the program does not keep them separate.
        """
        return ()

    def save(self, directory: str) -> str | None:  # noqa: ARG002 - for programs that can
        """Writes a checkpoint in place of the previous one; every process calls this.

        Args:
          directory: Directory of the checkpoints, visible to all processes.

        Returns:
          The prefix of its files, or None where a program cannot be saved.

        Raises:
          FloatingPointError: A variable is not finite; the previous checkpoint is kept.
        """
        return None

    @abc.abstractmethod
    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the conditions for using any number; outside timed windows."""

    @abc.abstractmethod
    def agree(self, value: int) -> int:
        """Returns the value of the first process; every process calls this."""

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns the replicator's description of the collectives in one step."""


class Workload(abc.ABC):
    """A reference program that can be built on any replicator.

    Attributes:
      name: The name in the catalogue.
      version: Changes whenever the meaning of a measured number changes.
      example_unit: Plural unit of an example, such as ``images``.
    """

    name: str
    version: str
    example_unit: str

    def prepare(self, *, data: str) -> None:  # noqa: B027 - most data needs nothing
        """Prepares the data set, if this needs to be done once per machine.

        Called before anything is timed, so that the first trial on a machine does not
        start more slowly than the others; and before the replicator is created, so it
        must not run TensorFlow ops, after which no virtual devices can be created.

        Raises:
          ValueError: The data set cannot be prepared; the message says what to do.
        """

    @abc.abstractmethod
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
        """Builds variables, input pipelines and the step on ``replicator``.

        Raises:
          ValueError: Unknown preset, data set or option; the message lists them.
        """
