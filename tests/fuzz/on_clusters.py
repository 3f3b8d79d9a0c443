"""Runs ``cluster_programs`` on a cluster of two workers."""

from __future__ import annotations

from pathlib import Path

import case_cluster

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
