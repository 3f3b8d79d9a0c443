"""Concludes trials whose processes ended, or were ended, without saying why."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

from harness.run.trial_tree import is_out_of_memory
from harness.trial.rank_file import one_line, signal_name
from results.records.limits import MAX_TEXT
from results.records.models import Failure, Phase, TrialStatus
from results.records.texts import storable
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.run.trial_tree import TrialExit
    from harness.trial.rank_file import FirstExit, RankLog
    from results.records.models import TrialResult

_STDERR_TAIL_BYTES = 8_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """The status and result of a trial."""

    status: TrialStatus  # How it ended.
    failure: Failure | None  # Why it is not ok, or None.
    result: TrialResult | None  # The observations, if the trial completed.
    # Rates of a matrix product on its GPUs, in their order; empty if a process did not
    # record them.
    gpu_tflops: tuple[float, ...] = ()
    # That its processes had loaded; None where none was.
    nccl_version: str | None = None


def without_record(
    logs: Sequence[RankLog],
    trial_exit: TrialExit,
    first: FirstExit,
    trial_dir: Path,
) -> Conclusion:
    """Concludes a trial of which a process ended without a record of the reason."""
    if first.reason:
        log = None if first.rank is None else logs[first.rank]
        return failed(
            Phase.LAUNCH if log is None else log.phase,
            first.reason if log is None else f"{first.reason}: {_where(log)}",
            exception_type="LaunchError",
            traceback=_stderr_tail(trial_dir),
        )
    silent = [log for log in logs if log.failure is None] or logs
    named = [log for log in silent if log.rank == first.rank]
    return _died((named or [_furthest_behind(silent)])[0], trial_exit, trial_dir)


def _furthest_behind(logs: Sequence[RankLog]) -> RankLog:
    phases = list(Phase)
    return min(logs, key=lambda log: (phases.index(log.phase), len(log.steps)))


def _where(log: RankLog) -> str:
    if "metric" in log.facts:  # of a program of the user's
        return f"the command had printed {len(log.readings) or 'no'} numbers"
    steps = f" after {len(log.steps)} steps" if log.steps else ""
    return f"rank {log.rank} was in phase {log.phase.value}{steps}"


def timed_out(logs: Sequence[RankLog], trial_exit: TrialExit) -> Conclusion:
    """Concludes a trial that the harness ended: the rank that is furthest behind."""
    behind = _furthest_behind(logs)
    reason = f"killed after {trial_exit.timeout_sec:g} s (timeout): {_where(behind)}"
    if "metric" in behind.facts:
        reason += "; look at what it waits for, or raise --timeout"
        if behind.readings:
            reason += ", or end it after enough numbers by --num-measured-steps"
    failure = Failure(
        phase=behind.phase,
        reason=reason,
        exception_type="TimeoutError",
    )
    return Conclusion(status=TrialStatus.TIMEOUT, failure=failure, result=None)


def _died(log: RankLog, trial_exit: TrialExit, trial_dir: Path) -> Conclusion:
    tail = _stderr_tail(trial_dir)
    code = trial_exit.exit_code
    if code == -signal.SIGKILL:
        count = trial_exit.num_oom_kills
        how = "cause unknown: nobody counted out-of-memory kills of its control group"
        if count is not None:
            unknown = "" if count else "cause unknown: "
            how = f"{unknown}the kernel counted {count or 'no'} out-of-memory kills"
        failure = Failure(
            phase=log.phase,
            reason=f"SIGKILL that the harness did not send; {how}: {_where(log)}",
            traceback=tail,
        )
        status = TrialStatus.OUT_OF_MEMORY if count else TrialStatus.FAILED
        return Conclusion(status=status, failure=failure, result=None)
    how = f"signal {signal_name(-code)}" if code < 0 else f"exit code {code}"
    reason = f"the process exited before it completed, with {how}: {_where(log)}"
    conclusion = failed(log.phase, reason, traceback=tail)
    # Libraries of CUDA end the process where they cannot allocate.
    if conclusion.failure is not None and is_out_of_memory(conclusion.failure):
        return dataclasses.replace(conclusion, status=TrialStatus.OUT_OF_MEMORY)
    return conclusion


def failed(
    phase: Phase,
    reason: str,
    *,
    exception_type: str | None = None,
    traceback: str | None = None,
) -> Conclusion:
    """Returns the conclusion of a trial that has failed."""
    return Conclusion(
        status=TrialStatus.FAILED,
        failure=Failure(
            phase=phase,
            reason=one_line(reason),
            exception_type=exception_type,
            traceback=None if traceback is None else storable(traceback, MAX_TEXT),
        ),
        result=None,
    )


def _stderr_tail(trial_dir: Path) -> str | None:
    text = untrusted.tail(trial_dir / "stderr.log", _STDERR_TAIL_BYTES)
    return storable(text, MAX_TEXT) or None
