"""Submits a job to Slurm, after looking whether the cluster has what it needs."""

from __future__ import annotations

import difflib

from harness.errors import PlanError
from harness.launch.slurm import programs


def check(*, partition: str | None, nodes: int) -> None:
    """Checks that there is such a partition, and that it has as many nodes."""
    programs.check_installed(("sbatch", "sinfo", "srun"))
    lines = programs.run(["sinfo", "--noheader", "--format=%P %D"]).splitlines()
    sizes: dict[str, int] = {}
    default = ""
    for name, count in (line.split() for line in lines):
        plain = name.rstrip("*")
        sizes[plain] = sizes.get(plain, 0) + int(count)
        default = plain if name.endswith("*") else default
    listed = ", ".join(sizes) or "none"
    if partition is None and not default:
        raise PlanError(
            "--partition is missing, and this cluster has no default; known are"
            f" {listed}"
        )
    chosen = partition or default
    if chosen not in sizes:
        close = difflib.get_close_matches(chosen, sizes, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise PlanError(f"unknown --partition {chosen!r}; known are {listed}{hint}")
    if nodes > sizes[chosen]:
        raise PlanError(
            f"--nodes {nodes}: partition {chosen!r} has {sizes[chosen]}; use at most"
            f" --nodes {sizes[chosen]}, or another --partition"
        )


def submit(batch_file: str) -> str:
    """Submits a batch file; returns the id of the job."""
    return programs.run(["sbatch", "--parsable"], batch_file).strip().partition(";")[0]
