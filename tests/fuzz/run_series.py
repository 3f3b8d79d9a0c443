"""Runs as many random programs as asked: ``run_series.py PROGRAMS SEED [BACKEND]``.

Processes run one after the other, a few hundred programs each, so that what TensorFlow
keeps of traced functions does not add up. ``multi_worker`` or ``multi_worker_in_graph``
as a backend runs steps on four replicas of two real workers, which are started once for
a hundred. Ends with 1 if a difference was found.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PER_PROCESS = 500
PER_SEED = 100
TRAININGS_PER_SEED = 15  # of these; each takes as long as four steps


def main():
    """Starts processes until all programs were drawn; prints a line for each."""
    if sys.argv[1:2] == ["--child"]:
        return run_child(int(sys.argv[2]), int(sys.argv[3]))
    num_programs, first_seed = map(int, sys.argv[1:3])
    if len(sys.argv) > 3:
        return run_on_clusters(num_programs, first_seed, sys.argv[3])
    totals = Counter()
    num_differences = 0
    for start in range(0, num_programs, PER_PROCESS):
        count = min(PER_PROCESS, num_programs - start)
        seed = first_seed + start // PER_SEED
        done = subprocess.run(
            [sys.executable, __file__, "--child", str(count), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        )
        if done.returncode != 0:
            sys.stdout.write(f"seed {seed}: the process ended with {done.returncode}\n")
            sys.stdout.write(done.stdout)
            num_differences += 1
            continue
        report = json.loads(done.stdout.splitlines()[-1])
        totals.update(report["verdicts"])
        num_differences += len(report["differences"])
        for difference in report["differences"]:
            sys.stdout.write(f"\nDIFFERENCE {difference}\n")
        num_drawn = totals.total() + num_differences
        sys.stdout.write(
            f"{num_drawn} programs drawn, {num_differences} found a difference; "
            f"{dict(totals)}; peak memory {report['memory_bytes'] >> 20} MiB\n"
        )
        sys.stdout.flush()
    return int(num_differences > 0)


def run_on_clusters(num_programs, first_seed, backend):
    """Starts a cluster for each seed; prints a line for each."""
    sys.path.insert(0, str(FOLDER.parent / "support"))
    sys.path.insert(0, str(FOLDER))
    from fuzzing import series

    num_differences = 0
    for index, start in enumerate(range(0, num_programs, PER_SEED)):
        count, seed = min(PER_SEED, num_programs - start), first_seed + index
        with tempfile.TemporaryDirectory() as folder:
            found = series.run_on_workers(backend, Path(folder), seed, count)
        for verdicts, differences in found:
            lines = "".join(f"\nDIFFERENCE {line}" for line in differences)
            num_differences += len(differences)
            sys.stdout.write(f"{backend}, seed {seed}: {verdicts}{lines}\n")
            sys.stdout.flush()
    return int(num_differences > 0)


def run_child(num_programs, first_seed):
    """Runs series of one seed each; the last line of the output is the result."""
    runpy.run_path(str(FOLDER.parent / "quick_start" / "sitecustomize.py"))
    import tensorflow as tf

    from replicator.core import devices

    tf.get_logger().setLevel("ERROR")  # warnings about many traces: so it must be here
    devices.split_cpu(3)
    sys.path.insert(0, str(FOLDER))
    from fuzzing.series import STEPS, TRAININGS, Series, run_series

    series = Series()
    for index, start in enumerate(range(0, num_programs, PER_SEED)):
        count = min(PER_SEED, num_programs - start)
        num_trainings = count * TRAININGS_PER_SEED // PER_SEED
        for grammar, number in (
            (STEPS, count - num_trainings),
            (TRAININGS, num_trainings),
        ):
            if number:
                series.add(run_series(first_seed + index, number, grammar=grammar))
    report = {
        "verdicts": {v.value: n for v, n in series.verdicts.items()},
        "differences": series.differences,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    sys.stdout.write(f"\n{json.dumps(report)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
