"""Many drawn programs on a cluster of two workers, against the interpreter."""

import dataclasses
import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import case_cluster
from fuzzing import drawing, series
from fuzzing.values import DifferenceError, Verdict

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
    return _run(repl, seed, num_programs, drawing.FEATURES)


def multi_worker(seed, num_programs):
    """Programs that every worker draws, and runs its part of."""
    repl = replicator.create("multi_worker", num_replicas=NUM_REPLICAS)
    features = [name for name in drawing.FEATURES if name not in ENDS_A_JOB]
    return _run(repl, seed, num_programs, features)


def _run(repl, seed, num_programs, features):
    """Goes on after a difference, which other workers may not see."""
    differences = []

    def check(program):
        try:
            return series.check(program, repl)
        except DifferenceError as difference:
            differences.append(f"{difference}\n{series.STEPS.render(program)}")
            return Verdict.NOT_JUDGED

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
# By backend, the processes that draw programs; the others serve.
RUNNERS = {
    "multi_worker": [("worker", 0), ("worker", 1)],
    "multi_worker_in_graph": [("worker", 0)],
}


def run(backend, folder, seed, num_programs):
    """By process that draws, how many programs ended how, and the differences."""
    ran = case_cluster.ran(
        "cluster_programs",
        folder,
        path=Path(__file__).resolve().parent,
        cases=[backend],
        options={"seed": seed, "num_programs": num_programs},
        runners=RUNNERS[backend],
        num_workers=2,
        num_cpu_devices=2,
    )
    return ran.values(backend)
