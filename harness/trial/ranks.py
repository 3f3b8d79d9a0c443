"""Root process of a multi-process trial: starts the others, waits, and exits like them.

    python -m harness.trial.ranks <worker command...> <trial directory>

All members of the cluster run the worker command; ``TF_CONFIG`` gives each its task.
The trial is over when every rank has ended; then the members that serve are stopped.
When a rank fails, the others get a grace period to record what they observed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.machine.allocation import Member, processes_of_trial
from harness.trial import process_tree, rank_file
from harness.trial.rank_file import GRACE_SEC, LOGS, FirstExit, cause_of, end_like
from replicator.cluster.local_cluster import LocalCluster
from results.records.models import Environment, TrialSpec

_POLL_SEC = 0.05


def main(argv: Sequence[str]) -> int:
    trial_dir = Path(argv[-1])
    process_tree.request_death_signal()
    process_tree.watch_pipe(sys.stdin.fileno())
    spec = TrialSpec.model_validate_json((trial_dir / "spec.json").read_bytes())
    env = Environment.model_validate_json((trial_dir / "env.json").read_bytes())
    processes = processes_of_trial(spec)
    with LocalCluster(
        argv,
        num_workers=processes.count("worker"),
        num_ps=processes.count("ps"),
        has_chief=bool(processes.count("chief")),
        cpusets=env.placement.cpusets,
        log_dir=trial_dir / LOGS,
    ) as cluster:
        ranks = processes.members[: processes.num_ranks]
        code = _wait(cluster, ranks, trial_dir)
        if code:
            # The harness records the end of this process's output with the failure.
            sys.stderr.write(cluster.tails())
            sys.stderr.flush()
    # The harness recognizes a crash or a kill of a rank by the signal.
    return end_like(code)


def _wait(cluster: LocalCluster, ranks: Sequence[Member], trial_dir: Path) -> int:
    """Waits for the ranks; returns 0 or the most informative exit code."""
    bad: dict[int, int] = {}
    num_ended = 0
    deadline = None
    while num_ended < len(ranks) and (deadline is None or time.monotonic() < deadline):
        codes = {rank: cluster.exit_code(*each) for rank, each in enumerate(ranks)}
        # In the order in which they ended.
        bad |= {rank: code for rank, code in codes.items() if code}
        num_ended = sum(code is not None for code in codes.values())
        if bad:
            deadline = deadline or time.monotonic() + GRACE_SEC
        if num_ended < len(ranks):
            time.sleep(_POLL_SEC)
    if not bad:
        return 0
    rank = cause_of(bad, trial_dir)
    rank_file.write_first_exit(trial_dir, FirstExit(rank=rank))
    return bad[rank]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
