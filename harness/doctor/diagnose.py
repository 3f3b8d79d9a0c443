"""Runs all checks of the machine, in the order in which they are shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.doctor import canaries, gpu, load, settings
from harness.doctor.gpu import read_gpu_states
from harness.machine.machine_state import read_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.doctor.finding import Finding

DURATION_SEC = load.SPAN_SEC + 4 * canaries.NUM_ROUNDS * canaries.TURN_SEC + 2.0
"""About how long it takes; waiting for the processes is the last part."""


def diagnose(
    root: Path = Path("/"),
    measures: Sequence[Callable[[Sequence[int]], Sequence[Finding]]] = (
        canaries.check_canaries,
    ),
) -> list[Finding]:
    """Returns the findings of every check."""
    cpus = read_topology(root)
    cores = [cpu.cpu for cpu in cpus.cpus]
    # Before anything of ours runs.
    now = load.read_load(cores, root)
    findings = [
        load.check_neighbours(now, len(cores)),
        load.check_load_average(now, len(cores)),
        load.check_steal(now),
        load.check_throttling(now),
        settings.check_quota(cpus),
        settings.check_smt(cpus),
        settings.check_governor(cpus, root),
        settings.check_boost(root),
        settings.check_memory(root),
        settings.check_swap(root, now.num_swapped_pages),
        settings.check_huge_pages(root),
        load.check_accounting(now),
        *gpu.check_gpus(read_gpu_states(os.getpid())),
    ]
    for measure in measures:
        findings += measure(cores)
    return findings


def is_unfit(findings: Sequence[Finding]) -> bool:
    """Whether something makes timings of this machine unusable."""
    return any(finding.level == "bad" for finding in findings)
