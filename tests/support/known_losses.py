"""Studies of two replicas with one known loss, from controls or from blocks.

The truth is a model of what each of their steps does and for how long, which shares
nothing with the code that splits steps. Noise is typical of shared machines: 3 %
between repetitions for all cases, 1 % between processes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import synthetic
from study_files import with_results

from results import load_study
from results.figures import lost_time, scaling

REPETITIONS = 5
LOST = 0.012


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What a step does, in seconds: alone, and what two replicas take longer."""

    work: float = 0.050
    own_input: float = 0.004
    own_update: float = 0.003
    contention: float = 0.0
    exposed_communication: float = 0.0
    input: float = 0.0
    update: float = 0.0
    imbalance: float = 0.0

    def process(self, rank, *, no_input=False, no_update=False):
        """The step of one of two processes until it would communicate."""
        step = self.work + self.contention + self.imbalance * rank
        step += 0.0 if no_input else self.own_input + self.input
        return step + (0.0 if no_update else self.own_update + self.update)

    def times(self):
        """What each case and control takes."""
        alone = self.work + self.own_input + self.own_update
        two = [self.process(rank) for rank in (0, 1)]
        shared = self.input + self.update  # by the program of both replicas only
        comm = self.exposed_communication
        return {
            "case": max(two) + comm,
            "baseline": alone,
            "nosync": max(two),
            "independent": sum(two) / 2 - shared,
            "synthetic": self.process(1, no_input=True) + comm,
            "baseline_synthetic": alone - self.own_input,
            "without_update": self.process(1, no_update=True) + comm,
            "baseline_without_update": alone - self.own_update,
        }


def split(times, generator, *, late_sec=0.0, noise=0.01):
    """Measures cases and controls of known times, and splits the step of the case."""
    machine = np.exp(generator.normal(0, 0.03, REPETITIONS))

    def measured(seconds):
        process = np.exp(generator.normal(0, noise, REPETITIONS))
        return dict(enumerate((seconds * machine * process).tolist()))

    late = late_sec * machine + generator.normal(0, 0.0005, REPETITIONS)
    return lost_time.decompose(
        **{name: measured(seconds) for name, seconds in times.items()},
        imbalance=dict(enumerate(np.maximum(late, 0).tolist())),
    )


def of_controls(truth, seed):
    """The parts of the step of two replicas, from controls."""
    generator = np.random.default_rng(seed)
    return split(truth.times(), generator, late_sec=truth.imbalance)


OF_CONTROLS = [
    ("", Step()),
    # One replica waits for its input for a quarter of its step: two lose nothing.
    ("", Step(own_input=0.020, own_update=0.010)),
    ("contention", Step(contention=LOST)),
    ("exposed_communication", Step(exposed_communication=LOST)),
    ("input", Step(input=LOST)),
    ("update", Step(update=LOST)),
]

STEP_SEC, INJECTED_SEC = 0.050, 0.010
# The cases and controls that each part makes longer. Input and update are those of the
# program of all replicas: what one replica takes for them as well is no loss.
AFFECTED = {
    "none": (),
    "exposed_communication": ("case", "synthetic", "without_update"),
    "input": ("case", "nosync", "without_update"),
    "contention": ("case", "nosync", "independent", "synthetic", "without_update"),
    "imbalance": ("case", "nosync", "synthetic", "without_update"),
    "update": ("case", "nosync", "synthetic"),
    "unexplained": ("case", "nosync", "synthetic", "without_update"),
}


def held_by_controls(generator, injected):
    """Yields each part of one study, and whether its interval holds the truth."""
    times = {
        name: STEP_SEC + INJECTED_SEC * (name in AFFECTED[injected])
        for name in Step().times()
    }
    late_sec = INJECTED_SEC * (injected == "imbalance")
    for part in split(times, generator, late_sec=late_sec, noise=0.02).parts:
        truth = STEP_SEC if part.name == "alone" else 0.0
        yield (
            part.name,
            not part.time.excludes(truth + INJECTED_SEC * (part.name == injected)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cores:
    """Seconds that the cores of two replicas work in a step beyond the step of one."""

    computing: float = 0.0  # For the trial.
    run_queue_delay: float = 0.0  # For others, while a thread of the trial waits.
    idle: float = 0.0  # Nothing.
    # How long threads wait for threads of the same trial, at any size.
    queue: float = 0.0


ALONE = 0.057
OF_BLOCKS = [
    ("", Cores(queue=0.050)),
    ("computing", Cores(computing=LOST, queue=0.050)),
    ("idle", Cores(idle=LOST, queue=0.050)),
    ("run_queue_delay", Cores(run_queue_delay=LOST)),
]


def make_study(folder):
    shape = synthetic.interleaving_shape(controls=(), repeats=REPETITIONS)
    return load_study(synthetic.make_store(folder, shape))


def of_blocks(study, truth, seed):
    """The parts of the step of two replicas, from blocks of known parts."""
    generator = np.random.default_rng(seed)
    machine = np.exp(generator.normal(0, 0.03, REPETITIONS))

    def change(entry):
        size = entry.spec.num_replicas
        is_alone = size == 1
        process = float(np.exp(generator.normal(0, 0.01)))
        factor = float(machine[entry.spec.repetition_index]) * process
        idle = 0.001 + (0.0 if is_alone else truth.idle)
        others = 0.0005 + (0.0 if is_alone else truth.run_queue_delay)
        cpu = ALONE - 0.0015 + (0.0 if is_alone else truth.computing)
        blocks, steps, now_ns = [], [], 0
        for block in entry.result.blocks:
            here = factor * float(np.exp(generator.normal(0, 0.005)))
            step = here * (cpu + idle + others)
            number = block.num_steps
            update = {
                "start_ns": now_ns,
                "end_ns": now_ns + round(1e9 * step * number),
                "user_sec": here * cpu * size * number,
                "foreign_cpu_fraction": others * here / step,
                "stolen_cpu_fraction": 0.0,
                "run_delay_sec": (others + truth.queue) * here * size * number,
            }
            blocks.append(block.model_copy(update=update))
            now_ns = blocks[-1].end_ns + 1_000_000
            steps += [step] * number
        (rank,) = entry.result.ranks
        ranks = (rank.model_copy(update={"step_time_sec": tuple(steps)}),)
        return {"blocks": tuple(blocks), "ranks": ranks}

    made = with_results(study, change)
    (found,) = lost_time.recorded_losses(scaling.points(made))
    return found.lost


def held_by_blocks(found, truth):
    """Yields each part, and whether its interval holds the truth."""
    truths = {"ideal": ALONE, "unexplained": 0.0, **dataclasses.asdict(truth)}
    for part in found.parts:
        yield part.name, not part.time.excludes(truths[part.name])
