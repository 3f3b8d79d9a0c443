"""Runs the cases of a target in one cluster of processes, and joins what they saw."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from conformance_cases import runner

from replicator import catalog, local_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance_cases.runner import Outcome
    from conformance_cases.targets import Target

PROGRAM = Path(__file__).resolve().parents[1] / "cluster_member.py"
START_TIMEOUT_SEC = 120.0
TIMEOUT_PER_CASE_SEC = 20.0
_POLL_SEC = 0.1


def run(target: Target, case_names: Sequence[str], folder: Path) -> dict[str, Outcome]:
    """Runs cases in a cluster of their own.

    Args:
      target: The backend and its options.
      case_names: Which cases, in this order.
      folder: An empty folder for results and outputs.

    Returns:
      What came of each case; of a case that the cluster did not finish, an error with
      the end of the processes' outputs.
    """
    processes = catalog.BACKENDS[target.backend].processes
    has_chief = processes == catalog.PARAMETER_SERVERS
    program = {
        catalog.SERVED_WORKERS: [("worker", 0)],
        catalog.PARAMETER_SERVERS: [("chief", 0)],
    }.get(processes, [("worker", i) for i in range(target.num_workers)])
    cluster = local_cluster.LocalCluster(
        [sys.executable, str(PROGRAM), target.name, str(folder), *case_names],
        num_workers=target.num_workers,
        num_ps=int(has_chief),
        has_chief=has_chief,
        env={
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": str(PROGRAM.parents[2]),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        log_dir=folder / "logs",
    )
    limit_sec = START_TIMEOUT_SEC + TIMEOUT_PER_CASE_SEC * len(case_names)
    with cluster:
        deadline = time.monotonic() + limit_sec
        while time.monotonic() < deadline and all(
            cluster.is_running(*member) for member in program
        ):
            time.sleep(_POLL_SEC)
        # Others are at the same case, or one is lost and they say so in bounded time.
        while time.monotonic() < deadline and any(
            cluster.is_running(*member) for member in program
        ):
            time.sleep(_POLL_SEC)
        outputs = "\n".join(cluster.output(*member)[-3000:] for member in program)
    return {
        name: _read(folder, name, len(program), outputs, limit_sec)
        for name in case_names
    }


def _read(
    folder: Path, name: str, num_files: int, outputs: str, limit_sec: float
) -> Outcome:
    paths = [folder / f"{name}.{index}.pickle" for index in range(num_files)]
    if not all(path.exists() for path in paths):
        return runner.Outcome(
            error_kinds=("ClusterEnded",),
            message=f"no result of {name} within {limit_sec:g} s",
            trace=outputs,
        )
    return runner.join([pickle.loads(path.read_bytes()) for path in paths])
