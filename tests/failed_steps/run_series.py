"""Injects failures into running steps: ``run_series.py FAILURES SEED [BACKEND...]``.

In one process, with shared variables and with copies, 21 of 50; with the replicas of
two processes in one graph, 7 of 50; with one program in each, which a failure ends, 1
of 50. Ends with 1 if a copy, a value that is read outside, a position or what follows
differs from a run that nothing disturbed.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PER_PROCESS = 200
SHARES = {"shared": 21, "mirrored": 21, "multi_worker_in_graph": 7, "multi_worker": 1}


def main() -> int:
    """Runs each backend in processes of its own; prints a line for each of them."""
    if sys.argv[1:2] == ["--child"]:
        return run_child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    num_failures, seed = map(int, sys.argv[1:3])
    num_differences = 0
    for backend in sys.argv[3:] or SHARES:
        total = num_failures * SHARES[backend] // sum(SHARES.values())
        for start in range(0, total, PER_PROCESS):
            count = min(PER_PROCESS, total - start)
            found = _differences(backend, count, seed + start)
            num_differences += len(found)
            lines = "".join(f"\nDIFFERENCE {line}" for line in found)
            sys.stdout.write(
                f"{backend}: {start + count} failures injected, {len(found)} "
                f"differences in the last {count}{lines}\n"
            )
            sys.stdout.flush()
    return int(num_differences > 0)


def _differences(backend: str, num_failures: int, seed: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", backend, str(num_failures), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
    )
    if done.returncode != 0:
        return [f"seed {seed}: the process ended with {done.returncode}"]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_child(backend: str, num_failures: int, seed: int) -> int:
    """Injects failures; the last line of the output is the result."""
    runpy.run_path(str(FOLDER.parent / "quick_start" / "sitecustomize.py"))
    for path in (FOLDER, FOLDER.parent / "support"):
        sys.path.insert(0, str(path))
    with tempfile.TemporaryDirectory() as name:
        found = _run(backend, num_failures, seed, Path(name))
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    return 0


def _run(backend: str, num_failures: int, seed: int, folder: Path) -> list[str]:
    from replicator.core import devices

    devices.split_cpu(4)
    if backend in ("shared", "mirrored"):
        import series

        make = functools.partial(series.make_repl, placement=backend)
        return series.run(seed, num_failures, make, folder)
    import case_cluster

    def in_cluster(case: str, place: Path, seed: int, **how: object) -> list[str]:
        place.mkdir()
        cluster = case_cluster.ran(
            "series",
            place,
            path=FOLDER,
            cases=[case],
            options={"seed": seed, "num_failures": num_failures},
            num_workers=2,
            **how,
        )
        return [line for lines in cluster.values(case) for line in lines]

    if backend == "multi_worker_in_graph":
        first = [("worker", 0)]
        return in_cluster("client", folder / "client", seed, runners=first)
    # One job, which each cluster continues from the checkpoint of the last one.
    return [
        line
        for index in range(num_failures)
        for line in in_cluster("worker", folder / f"worker_{index}", seed + index)
    ]


if __name__ == "__main__":
    sys.exit(main())
