"""One process of a cluster: ``cluster_member.py TARGET FOLDER CASE...``.

Which processes run the program and which serve is a fact of the backend. What came of a
case is left in the folder as soon as it is known. Processes that run the program go on
to the next case together, or end.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from replicator.cluster import environment

CASE_TIMEOUT_SEC = 90.0


def main():
    """Serves, or runs all cases, in the order of the arguments."""
    target_name, folder, *case_names = sys.argv[1:]
    config = environment.detect().config()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from conformance_cases.clusters import program_members
    from conformance_cases.targets import TARGETS

    target = TARGETS[target_name]
    members = program_members(target)
    if (config.kind, config.index) not in members:
        from replicator import server

        server.run(["--num-cpu-devices", str(target.num_devices_per_worker)])
        return
    process = members.index((config.kind, config.index))
    run_cases(target, case_names, Path(folder), process, len(members))


def run_cases(target, case_names, folder, process, num_processes):
    """Runs cases on replicators that are made once, until one parts the processes."""
    from conformance_cases import runner
    from conformance_cases.every import CASES
    from conformance_cases.outcomes import OutcomeFolder

    from replicator.placement import devices

    devices.split_cpu(target.num_devices_per_worker)
    make = functools.cache(target.make_for)
    make(1)  # joins the cluster: before any variable is made
    runner.CASE_TIMEOUT_SEC = CASE_TIMEOUT_SEC
    outcomes = OutcomeFolder(folder, num_processes)
    for name in case_names:
        outcome = runner.evaluate(CASES[name], lambda c: make(c.num_logical_devices))
        outcomes.write(name, process, outcome)
        every = outcomes.wait_for(name, CASE_TIMEOUT_SEC)
        if not runner.can_go_on(every, make(1)):
            return


if __name__ == "__main__":
    main()
