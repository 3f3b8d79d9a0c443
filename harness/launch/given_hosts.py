"""What targets without a scheduler have in common: their hosts are already there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import PlanError

if TYPE_CHECKING:
    from harness.launch.targets import Job


def check(job: Job, *, target: str, does: str) -> None:
    """Checks that a job requests nothing that only a scheduler has.

    Args:
      job: The job.
      target: Its target.
      does: What happens on the hosts, for messages.

    Raises:
      PlanError: It requests such a thing, or hosts would differ in workers.
    """
    for option, value in (
        ("--array", job.array),
        ("--partition", job.partition),
        ("--image", job.image),
        ("--memory-per-worker", job.memory_per_worker),
    ):
        if value is not None:
            raise PlanError(
                f"--target {target} has no {option}: {does} on hosts that are already"
                " there; leave it out"
            )
    if job.nodes and job.workers % job.nodes:
        raise PlanError(
            f"--workers {job.workers} is not divisible by --nodes {job.nodes}; use a"
            " multiple, so that every host has as many workers"
        )
