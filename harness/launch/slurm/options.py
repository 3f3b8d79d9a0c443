"""The options of the launcher ``slurm``."""

from __future__ import annotations

from typing import Annotated

from harness.launch.options import Nodes
from harness.options.durations import duration
from harness.options.option import Option, Options


class SlurmOptions(Options):
    """What a job needs of Slurm."""

    nodes: Nodes = None
    partition: Annotated[
        str | None, Option(help="Partition of the cluster.", default="the cluster's")
    ] = None
    time_limit: Annotated[
        float | None,
        Option(
            help="Of the job; a sweep continues in its next run. As for `sbatch`, a"
            " number without a unit means minutes.",
            kind=duration("min"),
            default="the partition's",
        ),
    ] = None
