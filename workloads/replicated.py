"""Base classes of all workloads in the catalogue and of their programs."""

from __future__ import annotations

import contextlib
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import replicator
from workloads import catalog
from workloads.matching import MatchingReplicator
from workloads.reused_batch import ReusingReplicator
from workloads.spec import SanityCheck, StepProgram, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from replicator.checkpoint.manager import CheckpointManager


class CatalogWorkload(Workload):
    """A workload with name, version and unit from the catalogue."""

    def __init__(self, name: str) -> None:
        info = catalog.WORKLOADS[name]
        self.name = info.name
        self.version = info.version
        self.example_unit = info.example_unit

    def make_config(self, preset: str, options: Mapping[str, Any]) -> Any:
        """Returns the configuration of a preset with ``options`` in place of its own.

        Raises:
          ValueError: Unknown preset or option, or a value of a wrong type or range.
        """
        return catalog.make_config(self.name, preset, options)


class ReplicatedProgram(StepProgram):
    """Base of programs on a replicator: agreement, explanation, sanity checks.

    Attributes:
      reuses_batch: Whether every step gets the first batch again: a measuring control.
      is_matched: Whether N replicas are compared with one, which takes batches and
        noise that are drawn for all replicas (``workloads/matching.py``).
    """

    _inputs: replicator.InputIterator

    def __init__(
        self, repl: replicator.Replicator, *, per_replica_batch_size: int
    ) -> None:
        """Stores the batch sizes.

        Raises:
          ValueError: A batch size below 1.
        """
        if per_replica_batch_size < 1:
            raise ValueError(
                f"per_replica_batch_size {per_replica_batch_size!r} must be at least 1"
            )
        self.per_replica_batch_size = per_replica_batch_size
        self.global_batch_size = per_replica_batch_size * repl.num_replicas_in_sync
        self._repl = repl
        self.reuses_batch = isinstance(repl, ReusingReplicator)
        self.is_matched = isinstance(repl, MatchingReplicator)
        self._num_steps = 0
        self._last_loss = math.nan
        # Those of this process's replicas; they stay on their devices until requested.
        self._replica_losses: tuple[Any, ...] = ()
        self._checkpoints: CheckpointManager | None = None

    @property
    def pipeline_batch_size(self) -> int:
        """Examples of a batch that the input function makes."""
        return (
            self.global_batch_size if self.is_matched else self.per_replica_batch_size
        )

    def trained_values(self) -> dict[tuple[str, str], list[np.ndarray]]:
        """Returns copies of what training changes, by group and name.

        A group is ``model`` or ``optimizer``.
        """
        found = {}
        for name, trackable in self._trackables().items():
            is_optimizer = hasattr(trackable, "apply_gradients")
            variables = getattr(
                trackable, "variables" if is_optimizer else "trainable_variables", ()
            )
            # Counters would hide the rest, and are equal wherever steps are.
            values = [
                np.array(variable.numpy(), copy=True)
                for variable in variables
                if tf.as_dtype(variable.dtype).is_floating
            ]
            if values:
                found["optimizer" if is_optimizer else "model", name] = values
        return found

    def matched_draws(self) -> dict[str, np.ndarray]:
        """Returns what every matched step draws, by name, for all replicas.

        Rows first; nothing, unless a workload draws random numbers in its steps.
        """
        return {}

    def read(self, num_steps: int = 1) -> None:
        """Reads the batches of steps to the devices of the replicas; no step runs.

        Returns after the last batch has arrived.
        """
        with self._explained():
            for output in self._run(_touch, num_steps):
                float(output)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says what is wrong with the data, where a pipeline fails."""
        yield

    def _run(self, step: Callable[[Any], Any], num_steps: int) -> Any:
        """Runs steps on the next batches; returns what the last one returned."""
        with self._explained():
            return self._repl.run(step, self._inputs, num_steps=num_steps)

    def _keep_losses(self, losses: Any) -> float:
        """Waits for the losses of a step and returns their mean over replicas."""
        return self._reader_of(losses)()

    def _reader_of(self, losses: Any) -> Callable[[], float]:
        """Returns a function that does the same later, maybe after further steps."""
        # Queued here: behind further steps, it would wait for them.
        mean = self._repl.reduce("mean", losses)

        def read() -> float:
            self._replica_losses = tuple(losses)
            self._last_loss = float(mean)
            return self._last_loss

        return read

    def losses_of_replicas(self) -> tuple[float, ...]:
        """Returns the losses of the last step, one per replica of the whole trial."""
        own = [float(loss) for loss in self._replica_losses]
        # Python's JSON can represent NaN and infinity.
        of_workers = self._repl.gather_bytes(json.dumps(own).encode("ascii"))
        return tuple(loss for text in of_workers for loss in json.loads(text))

    def _trackables(self) -> Mapping[str, Any]:
        """Returns the objects to checkpoint, by name; empty if there are none."""
        return {}

    def save(self, directory: str) -> str | None:
        """Writes a checkpoint of models and optimizers; see ``StepProgram.save``.

        The position in the data is not part of it.
        """
        trackables = self._trackables()
        if not trackables:
            return None
        if self._checkpoints is None:
            self._checkpoints = self._repl.make_checkpoint_manager(
                directory, max_to_keep=1, **trackables
            )
        self._check_variables(trackables)
        return self._checkpoints.save(self._num_steps)

    def _check_variables(self, trackables: Mapping[str, Any]) -> None:
        """Raises if a value of a model is not finite.

        The loss of a step was computed before its update, so it does not show that.
        """
        for name, trackable in trackables.items():
            for variable in getattr(trackable, "trainable_variables", ()):
                if not np.isfinite(variable.numpy()).all():
                    raise FloatingPointError(
                        f"variable {variable.path!r} of {name!r} is not finite after "
                        f"{self._num_steps} steps"
                    )

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Checks the loss and the copies of the variables."""
        return (self._check_loss(), self._check_sync())

    def _check_loss(self) -> SanityCheck:
        return SanityCheck(
            name="loss_is_finite",
            is_passed=math.isfinite(self._last_loss),
            detail=f"last loss {self._last_loss}",
        )

    def _check_sync(self) -> SanityCheck:
        count = self._repl.num_replicas
        if self._repl.without_communication:
            return SanityCheck(
                name="replicas_in_sync",
                is_passed=True,
                detail=f"not checked: this control keeps its {count} replicas from "
                "communicating, so their variables differ",
            )
        try:
            self._repl.assert_in_sync()
        except replicator.ReplicatorError as error:
            is_passed, detail = False, str(error)
        else:
            is_passed, detail = True, f"variables of {count} replicas are identical"
        return SanityCheck(name="replicas_in_sync", is_passed=is_passed, detail=detail)

    def agree(self, value: int) -> int:
        """Returns the value of worker 0, on all workers."""
        return int(self._repl.gather_bytes(str(value).encode("ascii"))[0])

    def explain(self) -> str:
        """Returns the replicator's description of the collectives in one step."""
        return self._repl.explain()


def _touch(batch: Any) -> tf.Tensor:
    """Uses a little of every part of a batch, which has to be there for it."""
    leaves = tf.nest.flatten(batch, expand_composites=True)
    return tf.add_n([tf.reduce_sum(tf.cast(leaf[:1], tf.float32)) for leaf in leaves])
