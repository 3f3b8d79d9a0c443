"""Runs as many drawn jobs as asked; ends with 1 if one differs from what it must give.

    run_series.py programs PROGRAMS SEED [BACKEND]
    run_series.py failures FAILURES SEED [BACKEND...]

``programs`` are random ones, each against an interpreter. Processes run one after the
other, a few hundred programs each, so that what TensorFlow keeps of traced functions
does not add up. ``multi_worker`` or ``multi_worker_in_graph`` as a backend runs steps
on four replicas of two real workers, which are started once for a hundred.

``failures`` are injected into running steps: in one process, with shared variables and
with copies, 21 of 50; with the replicas of two processes in one graph, 7 of 50; with
one program in each, which a failure ends, 1 of 50. A copy, a value that is read
outside, a position or what follows must not differ from a run that nothing disturbed.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS_PER_PROCESS = 500
PROGRAMS_PER_SEED = 100
TRAININGS_PER_SEED = 15  # of these; each takes as long as four steps
FAILURES_PER_PROCESS = 200
SHARES = {"shared": 21, "mirrored": 21, "multi_worker_in_graph": 7, "multi_worker": 1}


def main() -> int:
    """Starts processes until all was drawn; prints a line for each of them."""
    what, *words = sys.argv[1:]
    if what == "--child":
        return run_child(words[0], *map(json.loads, words[1:]))
    count, seed = map(int, words[:2])
    run = {"programs": run_programs, "failures": run_failures}[what]
    num_differences = 0
    for line, differences in run(count, seed, words[2:]):
        num_differences += len(differences)
        found = "".join(f"\nDIFFERENCE {difference}" for difference in differences)
        sys.stdout.write(f"{line}{found}\n")
        sys.stdout.flush()
    return int(num_differences > 0)


Lines = Iterator[tuple[str, list[str]]]


def run_programs(count: int, first_seed: int, backends: list[str]) -> Lines:
    """Yields a line and the differences of each process, or of each cluster."""
    if backends:
        yield from _programs_on_clusters(count, first_seed, backends[0])
        return
    totals: Counter[str] = Counter()
    for start in range(0, count, PROGRAMS_PER_PROCESS):
        number = min(PROGRAMS_PER_PROCESS, count - start)
        seed = first_seed + start // PROGRAMS_PER_SEED
        found, wrong = _in_a_process("programs", seed, number)
        if wrong:
            yield f"seed {seed}", wrong
            continue
        totals.update(found["verdicts"])
        line = (
            f"{totals.total()} programs without a difference: {dict(totals)}; "
            f"peak memory {found['memory_bytes'] >> 20} MiB"
        )
        yield line, found["differences"]


def _programs_on_clusters(count: int, first_seed: int, backend: str) -> Lines:
    _prepare_imports("fuzz")
    from fuzzing import series

    for index, start in enumerate(range(0, count, PROGRAMS_PER_SEED)):
        number, seed = min(PROGRAMS_PER_SEED, count - start), first_seed + index
        with tempfile.TemporaryDirectory() as folder:
            found = series.run_on_workers(backend, Path(folder), seed, number)
        for verdicts, differences in found:
            yield f"{backend}, seed {seed}: {verdicts}", differences


def run_failures(count: int, seed: int, backends: list[str]) -> Lines:
    """Yields a line and the differences of each process."""
    for backend in backends or SHARES:
        total = count * SHARES[backend] // sum(SHARES.values())
        for start in range(0, total, FAILURES_PER_PROCESS):
            number = min(FAILURES_PER_PROCESS, total - start)
            found, wrong = _in_a_process("failures", seed + start, number, backend)
            yield f"{backend}: {start + number} failures injected", wrong or found


def _in_a_process(what: str, seed: int, *how: object) -> tuple[Any, list[str]]:
    """What a process found; or, if it ended, how."""
    words = ["--child", what, *map(json.dumps, (seed, *how))]
    done = subprocess.run(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
    )
    if done.returncode:
        end = f"seed {seed}: the process ended with {done.returncode}\n{done.stdout}"
        return None, [end]
    return json.loads(done.stdout.splitlines()[-1]), []


def run_child(what: str, *how: Any) -> int:
    """Draws for a series; the last line of the output is what was found."""
    runpy.run_path(str(TESTS / "quick_start" / "sitecustomize.py"))
    _prepare_imports("fuzz", "failed_steps")
    import tensorflow as tf

    from replicator.core import devices

    tf.get_logger().setLevel("ERROR")  # warnings about many traces: so it must be here
    devices.split_cpu(4)
    found = {"programs": _draw_programs, "failures": _inject_failures}[what](*how)
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    return 0


def _prepare_imports(*folders: str) -> None:
    sys.path[:0] = [str(TESTS / name) for name in folders]


def _draw_programs(first_seed: int, count: int) -> dict[str, Any]:
    from fuzzing.series import STEPS, TRAININGS, Series, run_series

    series = Series()
    for index, start in enumerate(range(0, count, PROGRAMS_PER_SEED)):
        number = min(PROGRAMS_PER_SEED, count - start)
        num_trainings = number * TRAININGS_PER_SEED // PROGRAMS_PER_SEED
        for grammar, of_grammar in (
            (STEPS, number - num_trainings),
            (TRAININGS, num_trainings),
        ):
            if of_grammar:
                seed = first_seed + index
                series.add(run_series(seed, of_grammar, grammar=grammar))
    return {
        "verdicts": {v.value: n for v, n in series.verdicts.items()},
        "differences": series.differences,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def _inject_failures(seed: int, count: int, backend: str) -> list[str]:
    import case_cluster
    import test_failed_steps as series

    def in_cluster(case: str, place: Path, seed: int, **how: object) -> list[str]:
        place.mkdir()
        cluster = case_cluster.ran(
            "test_failed_steps",
            place,
            path=TESTS / "failed_steps",
            cases=[case],
            options={"seed": seed, "num_failures": count},
            num_workers=2,
            **how,
        )
        return [line for lines in cluster.values(case) for line in lines]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if backend in ("shared", "mirrored"):
            make = functools.partial(series.make_repl, placement=backend)
            return series.run(seed, count, make, folder)
        if backend == "multi_worker_in_graph":
            first = [("worker", 0)]
            return in_cluster("client", folder / "client", seed, runners=first)
        # One job, which each cluster continues from the checkpoint of the last one.
        return [
            line
            for index in range(count)
            for line in in_cluster("worker", folder / f"worker_{index}", seed + index)
        ]


if __name__ == "__main__":
    sys.exit(main())
