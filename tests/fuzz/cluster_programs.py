"""What processes of a cluster run: many drawn programs, against the interpreter."""

import dataclasses
import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzzing import checking, choices, drawing, series
from fuzzing.comparing import DifferenceError

import replicator

NUM_REPLICAS = 4  # two in each of two workers
# A step that fails, or finds that shapes differ, ends a job of several processes.
ENDS_A_JOB = {"failures", "uneven"}


def set_up(folder, *, seed, num_programs):
    del folder
    return seed, num_programs


def multi_worker_in_graph(seed, num_programs):
    """Programs of which two processes run the replicas, in one graph."""
    repl = replicator.create("multi_worker_in_graph", num_replicas=NUM_REPLICAS)
    return _run(repl, seed, num_programs, choices.FEATURES)


def multi_worker(seed, num_programs):
    """Programs that every worker draws, and runs its part of."""
    repl = replicator.create("multi_worker", num_replicas=NUM_REPLICAS)
    features = [name for name in choices.FEATURES if name not in ENDS_A_JOB]
    return _run(repl, seed, num_programs, features)


def _run(repl, seed, num_programs, features):
    """Goes on after a difference, which other workers may not see."""
    differences = []

    def check(program):
        try:
            return checking.check(program, repl)
        except DifferenceError as difference:
            differences.append(f"{difference}\n{series.STEPS.render(program)}")
            return checking.Verdict.NOT_JUDGED

    grammar = dataclasses.replace(
        series.STEPS,
        programs=functools.partial(drawing.programs, nums_replicas=(NUM_REPLICAS,)),
        check=check,
    )
    found = series.run_series(
        seed, num_programs, grammar=grammar, is_shrunk=False, features=features
    )
    verdicts = {verdict.value: n for verdict, n in found.verdicts.items()}
    return [verdicts, differences]


CASES = {
    "multi_worker": multi_worker,
    "multi_worker_in_graph": multi_worker_in_graph,
}
