"""One process of a cluster: ``cluster_member.py TARGET FOLDER CASE...``.

Which processes run the program and which serve is a fact of the backend. What came of a
case is written to a file of its name and the worker's id, as soon as it is known.
"""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path

from replicator import catalog, cluster

CASE_TIMEOUT_SEC = 90.0
NUM_CPU_DEVICES = 2  # of each process, for replicas that are split


def main():
    """Serves, or runs all cases, in the order of the arguments."""
    target_name, folder, *case_names = sys.argv[1:]
    config = cluster.ClusterConfig.from_tf_config()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from conformance_cases.targets import TARGETS

    target = TARGETS[target_name]
    if not runs_program(catalog.BACKENDS[target.backend].processes, config):
        from replicator import server

        server.run(["--num-cpu-devices", str(NUM_CPU_DEVICES)])
        return
    worker_id = 0 if config.kind == "chief" else config.worker_id
    run_cases(target, case_names, Path(folder), worker_id)


def run_cases(target, case_names, folder, worker_id):
    """Runs cases on replicators that are made once."""
    from conformance_cases import runner
    from conformance_cases.every import CASES

    from replicator import devices

    devices.split_cpu(NUM_CPU_DEVICES)
    make = functools.cache(target.make_for)
    make(1)  # joins the cluster: before any variable is made
    runner.CASE_TIMEOUT_SEC = CASE_TIMEOUT_SEC
    for name in case_names:
        outcome = runner.evaluate(CASES[name], lambda c: make(c.num_logical_devices))
        part = folder / f"{name}.{worker_id}.part"
        part.write_bytes(pickle.dumps(outcome))
        part.rename(part.with_suffix(".pickle"))


def runs_program(processes, config):
    """Whether this process runs the user's program, or serves another one's."""
    if processes == catalog.SERVED_WORKERS:
        return config.is_chief
    if processes == catalog.PARAMETER_SERVERS:
        return config.kind == "chief"
    return True


if __name__ == "__main__":
    main()
