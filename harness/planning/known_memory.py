"""What earlier studies say about batches that do not fit into the memory of a GPU.

The memory that a program needs cannot be computed before it runs. But where the same
code has run out of memory with a batch on the same model of GPU, the same batch or a
larger one will not fit, on as many GPUs or more; and that takes minutes to find out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from harness.errors import PlanError
from results.errors import ResultsError
from results.records import identity
from results.records.models import Environment, StatusRecord, TrialSpec, TrialStatus
from results.store import record_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from results.records.models import PlannedTrial

_MAX_EARLIER_TRIALS = 2_000
_DECISIVE = (TrialStatus.OK, TrialStatus.OUT_OF_MEMORY)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTrial:
    """A trial on GPUs that fitted into memory, or did not."""

    study: str  # The name of its study.
    program: str  # The digest of what it ran, without batch, replicas and repetition.
    gpu: str  # Product name of its GPUs.
    num_replicas: int  # Its replicas.
    per_replica_batch_size: int  # Its batch on each GPU.
    has_fitted: bool  # Whether it completed.


def program_of(spec: TrialSpec) -> str:
    """Returns the digest of what determines the memory of a trial but its sizes."""
    fields = ("workload", "preset", "data", "backend", "code_digest", "options")
    return identity.digest({name: getattr(spec, name) for name in fields})


def check(
    trials: Sequence[PlannedTrial], runs_dir: Path, *, study: str, gpu: str
) -> None:
    """Checks that no trial has a batch that is known not to fit."""
    earlier = [e for e in _read(runs_dir) if e.gpu == gpu and e.study != study]
    for trial in trials:
        spec = trial.spec
        same = [e for e in earlier if e.program == program_of(spec)]
        failed = [
            e
            for e in same
            if not e.has_fitted
            and e.num_replicas <= spec.num_replicas
            and e.per_replica_batch_size <= spec.per_replica_batch_size
        ]
        if failed:
            raise PlanError(_complaint(spec, failed[-1], same))


def _complaint(
    spec: TrialSpec, failed: EarlierTrial, same: Sequence[EarlierTrial]
) -> str:
    fitting = max(
        (
            e.per_replica_batch_size
            for e in same
            if e.has_fitted
            and e.num_replicas >= spec.num_replicas
            and e.per_replica_batch_size < failed.per_replica_batch_size
        ),
        default=None,
    )
    size = spec.per_replica_batch_size
    known = f"use less than --per-replica-batch-size {failed.per_replica_batch_size}"
    if fitting is not None:
        known = f"{fitting} fits: use --per-replica-batch-size {fitting}"
    return (
        f"{spec.num_replicas} x {size} examples do not fit with backend"
        f" {spec.backend!r}: {failed.num_replicas} x"
        f" {failed.per_replica_batch_size} ran out of memory on {failed.gpu} in study"
        f" {failed.study!r}; {known}, or --retry failed to try it"
        " again"
    )


def _read(runs_dir: Path) -> Iterator[EarlierTrial]:
    paths = sorted(runs_dir.glob("*/trials/*/status.json"))
    for path in paths[-_MAX_EARLIER_TRIALS:]:
        try:
            status = record_file.read(path, "status", StatusRecord)
            if status is None or status.status not in _DECISIVE:
                continue
            spec = record_file.read(path.with_name("spec.json"), "spec", TrialSpec)
            env = record_file.read(path.with_name("env.json"), "env", Environment)
        except ResultsError:
            continue  # it is reported when its own study is read
        if spec is not None and env is not None and env.gpus:
            yield EarlierTrial(
                study=path.parents[2].name,
                program=program_of(spec),
                gpu=env.gpus[0],
                num_replicas=spec.num_replicas,
                per_replica_batch_size=spec.per_replica_batch_size,
                has_fitted=status.status is TrialStatus.OK,
            )
