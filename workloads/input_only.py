"""A measuring control: the input pipelines of a program, without its steps.

Everything is built as for the case, and every "step" reads the batches of a step to the
devices of the replicas, in one dispatch. Where that takes as long as the step of the
case, faster replicas would wait for their batches. Nothing is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.spec import SanityCheck, StepProgram

if TYPE_CHECKING:
    from workloads.replicated import ReplicatedProgram
    from workloads.spec import QualityMetric


class InputOnlyProgram(StepProgram):
    """A program that only reads what another one would train on."""

    def __init__(self, program: ReplicatedProgram) -> None:
        self._program = program
        self.per_replica_batch_size = program.per_replica_batch_size
        self.global_batch_size = program.global_batch_size
        self.num_parameters = program.num_parameters

    def run(self, num_steps: int = 1) -> float:
        """Reads the batches of steps, and returns 0: there is no loss."""
        self._program.read(num_steps)
        return 0.0

    def evaluate(self) -> tuple[QualityMetric, ...]:
        """Nothing is trained, so nothing is evaluated."""
        return ()

    def start_window(self) -> None:
        """Starts the window of the program; see ``StepProgram.start_window``."""
        self._program.start_window()

    def pause(self) -> None:
        """Stops what runs in the background; see ``StepProgram.pause``."""
        self._program.pause()

    def resume(self) -> None:
        """Continues what ``pause`` stopped."""
        self._program.resume()

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns what the program counted; see ``StepProgram.window_metrics``."""
        return self._program.window_metrics()

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of the whole trial so far."""
        return self._program.num_environment_steps()

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Says that there is nothing to check."""
        return (
            SanityCheck(
                name="input_only",
                is_passed=True,
                detail="not checked: this control reads batches and runs no step",
            ),
        )

    def agree(self, value: int) -> int:
        """Returns the value of the first process; see ``StepProgram.agree``."""
        return self._program.agree(value)

    def explain(self) -> str:
        """Returns the collectives of what was run, of which there are none."""
        return self._program.explain()
