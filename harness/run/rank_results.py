"""The result record of a trial from the rank files of its processes."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from harness.command import result as command_result
from results.records.changes import Change
from results.records.models import (
    Control,
    Phase,
    QualityMetric,
    QualityPoint,
    RankTimes,
    SanityCheck,
    TrialResult,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.trial.rank_file import RankLog
    from results.records.models import TrialSpec, Turn


def make_result(
    trial_id: str,
    spec: TrialSpec,
    logs: Sequence[RankLog],
    turns: Sequence[Turn] = (),
) -> TrialResult:
    """Returns the result record of complete rank files."""
    if spec.has_readings:
        return command_result.make_result(trial_id, spec, logs[0])
    num_measured_steps = spec.num_measured_steps
    if num_measured_steps is None:
        num_measured_steps = sum(turn.num_steps for turn in turns)
    ranks = tuple(_rank_times(spec, log, num_measured_steps) for log in logs)
    # From the latest start on, all ranks were measuring.
    start_ns = max(rank.window_start_ns for rank in ranks)
    end_ns = max(rank.window_end_ns for rank in ranks)
    window_sec = (end_ns - start_ns) / 1e9
    if len({log.clock_host for log in logs}) > 1:
        # Clocks of two machines differ; ranks that wait for each other measure alike.
        window_sec = (
            max(rank.window_end_ns - rank.window_start_ns for rank in ranks) / 1e9
        )
    if turns:
        window_sec = sum(turn.time_sec for turn in turns)
    facts = logs[0].facts
    global_batch_size = facts["global_batch_size"]
    if spec.control is Control.SOLO:  # every process has a batch of its own
        global_batch_size = sum(log.facts["global_batch_size"] for log in logs)
    return TrialResult(
        trial_id=trial_id,
        example_unit=facts["example_unit"],
        num_parameters=facts["num_parameters"],
        flops_per_example=facts.get("flops_per_example"),
        global_batch_size=global_batch_size,
        num_measured_steps=num_measured_steps,
        window_sec=window_sec,
        turns=tuple(turns),
        ranks=ranks,
        sanity=tuple(
            SanityCheck.model_validate(check) for log in logs for check in log.sanity
        ),
        quality=tuple(
            QualityMetric.model_validate(metric) for metric in logs[0].quality
        ),
        window_metrics=tuple(
            QualityMetric.model_validate(metric) for metric in logs[0].window_metrics
        ),
        curve=tuple(QualityPoint.model_validate(point) for point in logs[0].curve),
        changes=tuple(Change.model_validate(change) for change in logs[0].changes),
        collectives=logs[0].collectives,
    )


def _rank_times(spec: TrialSpec, log: RankLog, num_measured_steps: int) -> RankTimes:
    indices = [step.index for step in log.steps]
    num_steps = spec.num_warmup_steps + num_measured_steps
    if spec.budget is not None:
        num_steps = max(num_steps, len(indices))
    if indices != list(range(num_steps)):
        raise ValueError(
            f"rank {log.rank} has steps {indices}, expected 0 to {num_steps - 1}"
        )
    measured = [step for step in log.steps if step.phase is Phase.MEASURE]
    if len(measured) != num_measured_steps or not measured:
        raise ValueError(
            f"rank {log.rank} measured {len(measured)} steps, expected"
            f" {num_measured_steps or 'at least 1'}"
        )
    if log.time_to_first_step_sec is None:
        raise ValueError(f"rank {log.rank} has no time to first step")
    warmup = log.steps[: spec.num_warmup_steps]
    losses = [step.loss for step in log.steps if step.loss is not None]
    return RankTimes(
        rank=log.rank,
        time_to_first_step_sec=(
            log.time_to_first_step_sec if log.is_start_alone else 0.0
        ),
        warmup_step_time_sec=tuple(step.time_sec for step in warmup),
        step_time_sec=tuple(step.time_sec for step in measured),
        window_start_ns=measured[0].start_ns,
        window_end_ns=measured[-1].end_ns,
        # Records store finite numbers only; the raw ones stay in the rank file.
        losses=tuple(itertools.takewhile(math.isfinite, losses)),
        peak_memory_bytes=log.memory["peak_memory_bytes"],
        peak_flops_per_sec=log.peak.get("flops_per_sec"),
    )
