"""Derives a trial's status and result from its rank files and exit code."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import signal
import time
from typing import TYPE_CHECKING, Any

from harness.command import worker
from harness.trial import rank_file
from harness.trial.rank_file import (
    MALFORMED,
    RankFileError,
    RankLog,
    one_line,
    read_rank,
    signal_name,
)
from results.records.models import (
    Control,
    Failure,
    Phase,
    RankTimes,
    TrialResult,
    TrialStatus,
)
from results.records.record_base import MAX_REPLICAS, MAX_TEXT
from results.records.texts import printed, storable
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.run.trial_tree import TrialExit
    from harness.trial.rank_file import FirstExit
    from results.records.models import Block, TrialSpec


_STDERR_TAIL_BYTES = 8_000
_LATE_PERIOD_SEC = 0.5
CONSEQUENCE_TYPES = ("WorkerLostError",)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    status: TrialStatus = TrialStatus.OK  # How it ended.
    failure: Failure | None = None  # Why it is not ok, or None.
    result: TrialResult | None = None  # The observations, if the trial completed.
    gpu_tflops: tuple[float, ...] = ()  # Of a matrix product on its GPUs, in order.
    nccl_version: str | None = None  # That its processes had loaded.

    def but(
        self,
        phase: Phase,
        reason: str,
        *,
        status: TrialStatus = TrialStatus.FAILED,
        exception_type: str | None = None,
        traceback: str | None = None,
    ) -> Conclusion:
        failure = Failure(
            phase=phase,
            reason=one_line(reason),
            exception_type=exception_type,
            traceback=None if traceback is None else storable(traceback, MAX_TEXT),
        )
        return dataclasses.replace(self, status=status, failure=failure)


def conclude(
    trial_id: str,
    spec: TrialSpec,
    trial_dir: Path,
    trial_exit: TrialExit,
    *,
    num_ranks: int = 1,
    blocks: Sequence[Block] = (),
    late_sec: float = 0.0,
) -> Conclusion:
    """Determines the status of a finished trial; any problem becomes its failure."""
    deadline = time.monotonic() + late_sec
    try:
        logs = _read(trial_dir, num_ranks)
        while (
            trial_exit.exit_code == 0
            and not all(log.is_done for log in logs)
            and time.monotonic() < deadline
        ):
            time.sleep(_LATE_PERIOD_SEC)
            logs = _read(trial_dir, num_ranks)
    except RankFileError as error:
        kind = "RankFileError"
        return Conclusion().but(Phase.REPORT, str(error), exception_type=kind)
    if trial_exit.timeout_sec is not None:
        return _timed_out(logs, trial_exit.timeout_sec)
    first = rank_file.read_first_exit(trial_dir)
    if first.rank is not None and not 0 <= first.rank < len(logs):
        first = dataclasses.replace(first, rank=None)
    failed = _first_cause(logs, trial_exit, first)
    if failed is not None:
        return _recorded_failure(failed)
    if trial_exit.exit_code != 0 or not all(log.is_done for log in logs):
        return _without_record(logs, trial_exit, first, trial_dir)
    versions = {log.last("nccl").get("version", "") for log in logs} - {""}
    tflops = [log.last("gpu_canary").get("tflops", ()) for log in logs]
    return dataclasses.replace(
        _complete(trial_id, spec, logs, blocks),
        gpu_tflops=tuple(itertools.chain.from_iterable(tflops)),
        nccl_version="+".join(sorted(versions)) or None,
    )


def _read(trial_dir: Path, num_ranks: int) -> list[RankLog]:
    first = read_rank(trial_dir, 0)
    stated = first.num_ranks  # by a program with a client
    number = num_ranks if stated is None else min(max(stated, 1), MAX_REPLICAS)
    return [first, *(read_rank(trial_dir, rank) for rank in range(1, number))]


def _first_cause(
    logs: Sequence[RankLog], trial_exit: TrialExit, first: FirstExit
) -> RankLog | None:
    """The recorded failure that explains the others, or None where none does."""
    failed = [(log, log.failure) for log in logs if log.failure is not None]
    for log, failure in failed:
        if failure.get("exception_type") not in CONSEQUENCE_TYPES:
            return log
    # A rank was killed, ended by itself or was lost, and the others recorded that.
    is_seen = (
        trial_exit.exit_code < 0
        or bool(first.reason)
        or (first.rank is not None and logs[first.rank].failure is None)
    )
    return None if is_seen or not failed else failed[0][0]


def _recorded_failure(log: RankLog) -> Conclusion:
    assert log.failure is not None
    fields = {
        name: storable(text, MAX_TEXT) if isinstance(text, str) else text
        for name, text in log.failure.items()
    }
    fields["reason"] = one_line(printed(str(fields.get("reason"))))
    try:
        failure = Failure.model_validate(fields)
    except ValueError as error:
        return Conclusion().but(
            Phase.REPORT,
            f"rank {log.rank} recorded a malformed failure: {error}",
            exception_type="RankFileError",
            traceback=str(error),
        )
    return _failed(failure)


def _failed(failure: Failure) -> Conclusion:
    # The first line of an error of a graph is only "Graph execution error:".
    text = f"{failure.reason}\n{failure.traceback or ''}"
    is_memory = failure.exception_type in OUT_OF_MEMORY_TYPES or _MESSAGES.search(text)
    status = TrialStatus.OUT_OF_MEMORY if is_memory else TrialStatus.FAILED
    return Conclusion(status=status, failure=failure)


def _furthest_behind(logs: Sequence[RankLog]) -> RankLog:
    phases = list(Phase)
    return min(logs, key=lambda log: (phases.index(log.phase), len(log.steps)))


def _where(log: RankLog) -> str:
    if "metric" in log.last("facts"):  # of a program of the user's
        return f"the command had printed {len(log.all('reading')) or 'no'} numbers"
    steps = f" after {len(log.steps)} steps" if log.steps else ""
    return f"rank {log.rank} was in phase {log.phase.value}{steps}"


def _timed_out(logs: Sequence[RankLog], timeout_sec: float) -> Conclusion:
    """Concludes a trial that the harness ended: the rank that is furthest behind."""
    behind = _furthest_behind(logs)
    reason = f"killed after {timeout_sec:g} s (timeout): {_where(behind)}"
    if "metric" in behind.last("facts"):
        reason += "; look at what it waits for, or raise --timeout"
        if behind.all("reading"):
            reason += ", or end it after enough numbers by --steps +N"
    return Conclusion().but(
        behind.phase, reason, status=TrialStatus.TIMEOUT, exception_type="TimeoutError"
    )


def _without_record(
    logs: Sequence[RankLog], trial_exit: TrialExit, first: FirstExit, trial_dir: Path
) -> Conclusion:
    """Concludes a trial of which a process ended without a record of the reason."""
    tail = untrusted.tail(trial_dir / "stderr.log", _STDERR_TAIL_BYTES) or None
    if first.reason:
        log = None if first.rank is None else logs[first.rank]
        return Conclusion().but(
            Phase.LAUNCH if log is None else log.phase,
            first.reason if log is None else f"{first.reason}: {_where(log)}",
            exception_type="LaunchError",
            traceback=tail,
        )
    silent = [log for log in logs if log.failure is None] or logs
    named = [log for log in silent if log.rank == first.rank]
    log, code = (named or [_furthest_behind(silent)])[0], trial_exit.exit_code
    if code == -signal.SIGKILL:
        count = trial_exit.num_oom_kills
        how = "cause unknown: its control group does not count out-of-memory kills"
        if count is not None:
            unknown = "" if count else "cause unknown: "
            how = f"{unknown}the kernel counted {count or 'no'} out-of-memory kills"
        return Conclusion().but(
            log.phase,
            f"SIGKILL that the harness did not send; {how}: {_where(log)}",
            status=TrialStatus.OUT_OF_MEMORY if count else TrialStatus.FAILED,
            traceback=tail,
        )
    how = f"signal {signal_name(-code)}" if code < 0 else f"exit code {code}"
    reason = f"the process exited before it completed, with {how}: {_where(log)}"
    failure = Conclusion().but(log.phase, reason, traceback=tail).failure
    assert failure is not None
    # Libraries of CUDA end the process where they cannot allocate.
    return _failed(failure)


def _complete(
    trial_id: str, spec: TrialSpec, logs: Sequence[RankLog], blocks: Sequence[Block]
) -> Conclusion:
    try:
        result = make_result(trial_id, spec, logs, blocks)
    except MALFORMED as error:
        return Conclusion().but(
            Phase.REPORT,
            f"the observations are not a valid result: {one_line(str(error))}",
            exception_type=type(error).__name__,
            traceback=str(error),
        )
    made = Conclusion(result=result)
    for check in result.sanity:
        if not check.is_passed:
            reason = f"{check.name}: {check.detail}"
            return made.but(Phase.SANITY, reason, status=TrialStatus.FAILED_CHECKS)
    if blocks and not result.rates:
        return made.but(
            Phase.MEASURE,
            f"all {len(blocks)} blocks are discarded; the last one:"
            f" {blocks[-1].discard_reason}",
            status=TrialStatus.DISCARDED,
        )
    return made


def make_result(
    trial_id: str, spec: TrialSpec, logs: Sequence[RankLog], blocks: Sequence[Block]
) -> TrialResult:
    if spec.has_readings:
        return worker.make_result(trial_id, spec, logs[0])
    num_measured_steps = spec.num_measured_steps
    if num_measured_steps is None:
        num_measured_steps = sum(block.num_steps for block in blocks)
    ranks = tuple(_rank_times(spec, log, num_measured_steps) for log in logs)
    # From the latest start on, all ranks were measuring.
    start_ns, end_ns = _window_ns(ranks)
    window_sec = (end_ns - start_ns) / 1e9
    if len({log.last("clock").get("host", "") for log in logs}) > 1:
        # Clocks of two machines differ; ranks that wait for each other measure alike.
        spans_ns = [rank.window_end_ns - rank.window_start_ns for rank in ranks]
        window_sec = max(spans_ns) / 1e9
    if blocks:
        window_sec = sum(block.time_sec for block in blocks)
    facts = logs[0].last("facts")
    global_batch_size = facts["global_batch_size"]
    if spec.control is Control.INDEPENDENT:  # every process has a batch of its own
        global_batch_size = sum(log.last("facts")["global_batch_size"] for log in logs)
    kinds = {"quality": "quality", "window_metrics": "window_metric"}
    kinds |= {"curve": "point", "changes": "change"}
    records: dict[str, Any] = {k: tuple(logs[0].all(v)) for k, v in kinds.items()}
    records["sanity"] = tuple(line for log in logs for line in log.all("sanity"))
    return TrialResult(
        trial_id=trial_id,
        example_unit=facts["example_unit"],
        num_parameters=facts["num_parameters"],
        flops_per_example=facts.get("flops_per_example"),
        global_batch_size=global_batch_size,
        num_measured_steps=num_measured_steps,
        window_sec=window_sec,
        blocks=tuple(blocks),
        ranks=ranks,
        **records,
        collectives=logs[0].last("explain").get("collectives", ""),
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
    first_step = log.last("first_step_done")
    if not first_step:
        raise ValueError(f"rank {log.rank} has no time to first step")
    is_alone = first_step.get("is_alone", True)
    warmup = log.steps[: spec.num_warmup_steps]
    losses = [step.loss for step in log.steps if step.loss is not None]
    first_sec = first_step["time_to_first_step_sec"]
    return RankTimes(
        rank=log.rank,
        time_to_first_step_sec=first_sec if is_alone else 0.0,
        warmup_step_time_sec=tuple(step.time_sec for step in warmup),
        step_time_sec=tuple(step.time_sec for step in measured),
        window_start_ns=measured[0].start_ns,
        window_end_ns=measured[-1].end_ns,
        # Records store finite numbers only; the raw ones stay in the rank file.
        losses=tuple(itertools.takewhile(math.isfinite, losses)),
        peak_memory_bytes=log.last("memory")["peak_memory_bytes"],
        peak_flops_per_sec=log.last("peak").get("flops_per_sec"),
    )


def _window_ns(ranks: Sequence[RankTimes]) -> tuple[int, int]:
    start_ns = max(rank.window_start_ns for rank in ranks)
    return start_ns, max(rank.window_end_ns for rank in ranks)


def window_ns(conclusion: Conclusion) -> tuple[int | None, int | None]:
    result = conclusion.result
    return (None, None) if result is None else _window_ns(result.ranks)


# Libraries that allocate by themselves report it in many ways, and TensorFlow passes
# most of them on as internal or unknown errors.

OUT_OF_MEMORY_TYPES = ("MemoryError", "OutOfMemoryError", "ResourceExhaustedError")

_MESSAGES = re.compile(
    r"""
    CUDA_ERROR_OUT_OF_MEMORY
    | cudaErrorMemoryAllocation
    | (?:CUDNN|CUBLAS|CUSOLVER|CUSPARSE|CUFFT)(?:_STATUS)?_ALLOC_FAILED
    | CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED
    | cuda\ (?:error|failure)\W+(?:2\W+)?out\ of\ memory
    | ncclUnhandledCudaError.*out\ of\ memory
    | RESOURCE_EXHAUSTED:
    | out\ of\ memory\ (?:while|when)\ trying\ to\ allocate
    | failed\ to\ allocate\ (?:the\ )?(?:scratch|workspace|device\ memory)
    | failed\ to\ allocate\ [\d.]+\s?[KMGT]?i?B(?:ytes)?\b.*from\ device
    """,
    re.IGNORECASE | re.VERBOSE,
)
