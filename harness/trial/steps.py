"""Single steps of a trial: started, timed, recorded.

With ``steps_per_sync`` k above 1, k steps are started before the first of their losses
is read, and share their time equally. Reading the loss of the step before the last
would not do: a copy to the host waits for all that its GPU was given so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.trial import training

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.client.scaling_client import RankFile
    from harness.trial.measure import StepProgram
    from results.records.models import TrialSpec


def whole_blocks(num_steps: int, spec: TrialSpec) -> int:
    """Returns as many steps or more, of which no block is smaller than others."""
    return math.ceil(num_steps / spec.steps_per_sync) * spec.steps_per_sync


class Steps:
    """Runs single steps, times and records them.

    Attributes:
      progress: The steps so far.
      bad_loss: The first loss that is not finite, with its step and replicas, or "".
    """

    def __init__(
        self,
        program: StepProgram,
        writer: RankFile,
        clock: Callable[[], int],
        spec: TrialSpec,
    ) -> None:
        self._most = spec.steps_per_sync
        self._program = program
        self._writer = writer
        self._clock = clock
        self.progress = training.TrainingProgress(
            step_time_sec=[], global_batch_size=program.global_batch_size
        )
        self.bad_loss = ""

    def blocks(self, num_steps: int) -> list[int]:
        """Returns the sizes of the blocks in which steps are started together."""
        full, rest = divmod(num_steps, self._most)
        return [self._most] * full + [rest] * bool(rest)

    def run(self, num_steps: int = 1) -> int:
        """Runs steps, as many at a time as may be; returns their end in nanoseconds."""
        end_ns = 0
        for block in self.blocks(num_steps):
            end_ns = self._run_one() if block == 1 else self._run_block(block)
        return end_ns

    def _run_one(self) -> int:
        start_ns = self._clock()
        loss = self._program.run(1)
        end_ns = self._clock()
        self._check(self.progress.num_steps, loss)
        self._add(start_ns, end_ns, loss)
        return end_ns

    def _run_block(self, num_steps: int) -> int:
        """Starts all steps before it reads a loss; they share the time equally."""
        first, losses = self.progress.num_steps, []
        start_ns = self._clock()
        readers = [self._program.dispatch() for _ in range(num_steps)]
        for index, read_loss in enumerate(readers, start=first):
            losses.append(read_loss())
            self._check(index, losses[-1])
        end_ns = self._clock()
        ends = [
            start_ns + (end_ns - start_ns) * number // num_steps
            for number in range(num_steps + 1)
        ]
        for number, loss in enumerate(losses):
            self._add(ends[number], ends[number + 1], loss)
        return end_ns

    def _add(self, start_ns: int, end_ns: int, loss: float) -> None:
        self._writer.step(self.progress.num_steps, start_ns, end_ns, loss)
        self.progress.step_time_sec.append((end_ns - start_ns) / 1e9)

    def _check(self, index: int, loss: float) -> None:
        if math.isfinite(loss) or self.bad_loss:
            return
        # Ask now: the update spreads it to all replicas.
        where = _replicas_of_bad_losses(self._program.losses_of_replicas())
        self.bad_loss = f"{loss} in step {index}{where}"


def _replicas_of_bad_losses(losses: Sequence[float]) -> str:
    """Returns which replicas saw a loss that is not finite, for a message."""
    bad = [str(i) for i, loss in enumerate(losses) if not math.isfinite(loss)]
    if not bad or len(losses) == 1:
        return ""
    replicas = "replica" if len(bad) == 1 else "replicas"
    return f", seen by {replicas} {', '.join(bad)} of {len(losses)}"
