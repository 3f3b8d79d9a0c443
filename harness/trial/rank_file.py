"""The file ``rank_<k>.jsonl``: everything one process of a trial observed, in order.

One JSON object per line, ``kind`` first. Times are nanoseconds of ``CLOCK_MONOTONIC``,
which all processes of a machine share; those of two machines cannot be compared.

- ``trial``: ``trial_id``, ``nonce``. Whose observations these are; the first line.
- ``clock``: ``host``, which says whose clock it is; of trials of several processes.
- ``phase``: ``phase``, ``ns``. The process enters a phase.
- ``facts``: ``num_parameters``, ``flops_per_example`` (null if not counted),
  ``example_unit``, ``global_batch_size``; of a program of the user's also
  ``num_replicas`` and ``metric``, which say what its numbers mean.
- ``explain``: ``collectives``, the backend's description of them.
- ``client``: ``protocol``, ``rank``, ``num_ranks``; of a program with a client.
- ``step``: ``phase``, ``index``, ``start_ns``, ``end_ns``, ``loss`` (a number, a string
  such as ``nan``, or null where the program has none). The index counts over all phases
  from 0.
- ``turn``: of a relay, after its steps: ``round_index``, ``attempt``, ``start_ns``,
  ``end_ns``, ``num_steps``, and what the process used in it.
- ``first_step_done``: ``time_to_first_step_sec``, ``is_alone``.
- ``peak``: ``flops_per_sec``, ``method``. Of the devices of this process; before the
  window, and only where the floating-point operations of an example were counted.
- ``gpu_canary``: ``tflops`` of a matrix product on each GPU of the process, before the
  warm-up steps; ``reason`` where there is none.
- ``nccl``: ``version`` that the process has loaded; nothing where it has none.
- ``memory``: ``peak_memory_bytes``, ``method``. Of the measured window.
- ``window_metric``: the fields of ``QualityMetric``; counted in the measured window,
  or in the last warm-up step.
- ``heartbeat``: ``ns``. The process is alive, at least every few seconds.
- ``sanity``: ``name``, ``is_passed``, ``detail``.
- ``quality``: the fields of ``QualityMetric``, of what was reached in the end.
- ``point``: the fields of ``QualityPoint``; of a quality run.
- ``change``: ``group``, ``name``, ``sketch``: numbers that say what the first steps
  changed in a model or an optimizer; of a trial that is matched.
- ``reading``: ``ns``, ``value``; a number that a program of the user's printed.
- ``used``: ``num_processes``, ``busy_cores``, ``advances``, ``remarks``, of such a
  program.
- ``failure``: ``phase``, ``reason``, ``exception_type``, ``traceback``.
- ``done``: ``ns``. The process completed.

Lines are flushed as they are written and synced to disk at the end of a phase, so a
killed process leaves its lines so far; only the last one can be incomplete. Steps of
the measured window are formatted and written with the next other line, a heartbeat at
the latest: that takes about 0.1 ms each, which would be part of the window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from harness.client.scaling_client import rank_path, shortened
from results.errors import UnavailableRecordError
from results.records.models import Phase
from results.records.texts import printable
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "RankFileError",
    "RankLog",
    "StepTimes",
    "one_line",
    "rank_path",
    "read_rank",
]


MALFORMED = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    RecursionError,
)
"""What code raises that reads fields of JSON which anybody may have written."""


class RankFileError(ValueError):
    """A malformed rank file; an internal error or a disk error."""


def one_line(text: str) -> str:
    """Returns the first non-empty line of ``text``, printable and shortened."""
    line = next((s.strip() for s in text.splitlines() if s.strip()), "")
    return shortened(printable(line))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """One step as it was observed."""

    phase: Phase  # ``first_step``, ``warmup``, ``measure`` or ``train``.
    index: int  # Counted over all phases from 0.
    start_ns: int  # Before the call.
    end_ns: int  # After all device work.
    # Mean over the global batch; can be NaN or infinite. None if not known.
    loss: float | None

    @property
    def time_sec(self) -> float:
        """Duration of the step."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclasses.dataclass(kw_only=True, slots=True)
class RankLog:
    """The content of a rank file, as far as it was written."""

    rank: int  # The process's rank.
    # How many there are, as the program says; None where the plan says it.
    num_ranks: int | None = None
    clock_host: str = ""  # Whose clock its times are of.
    phase: Phase = Phase.LAUNCH  # The last phase entered.
    # Every step, in order.
    steps: list[StepTimes] = dataclasses.field(default_factory=list)
    # Fields of the ``facts`` line, empty before the build is done.
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    time_to_first_step_sec: float | None = None  # None before the first step is done.
    # Whether no other trial started beside this one until then.
    is_start_alone: bool = True
    # Fields of the ``peak`` line, empty if the peak was not measured.
    peak: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Rates of a matrix product on the GPUs of the process.
    gpu_tflops: list[float] = dataclasses.field(default_factory=list)
    nccl_version: str = ""  # Of the library in its memory; "" without one.
    # Fields of the ``memory`` line, empty before the window has ended.
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Fields of the ``window_metric`` lines.
    window_metrics: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    collectives: str = ""  # The backend's description of the collectives in a step.
    # Fields of the ``sanity`` lines.
    sanity: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Fields of the ``quality`` lines.
    quality: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Fields of the ``point`` lines.
    curve: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Fields of the ``change`` lines.
    changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Fields of the ``reading`` lines.
    readings: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Fields of the ``used`` line, empty before the program has ended.
    used: dict[str, Any] = dataclasses.field(default_factory=dict)
    failure: dict[str, Any] | None = None  # Fields of the ``failure`` line, or None.
    is_done: bool = False  # Whether the process completed.


def read_rank(trial_dir: Path, rank: int) -> RankLog:
    """Reads a rank file; a missing one is an empty log in phase ``launch``.

    A last line without its newline was left by a killed process and is skipped.
    """
    log = RankLog(rank=rank)
    path = rank_path(trial_dir, rank)
    try:
        text = untrusted.read_text(path)
    except (untrusted.DamagedFileError, UnavailableRecordError) as error:
        raise RankFileError(f"{path.name}: {error}") from error
    if text is None:
        return log
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            _apply(log, untrusted.parsed(line))
        except MALFORMED as error:
            raise RankFileError(
                f"{path.name} line {number} is malformed:"
                f" {type(error).__name__}: {error}"
            ) from error
    return log


# Kinds that can occur many times, and the list that stores them.
_LISTS = {
    "sanity": "sanity",
    "quality": "quality",
    "point": "curve",
    "window_metric": "window_metrics",
    "change": "changes",
    "reading": "readings",
}

# Kinds of one value: the attribute that stores it, its field, and its type.
_VALUES = {
    "clock": ("clock_host", "host", str),
    "client": ("num_ranks", "num_ranks", int),
    "explain": ("collectives", "collectives", str),
    "nccl": ("nccl_version", "version", str),
}

# Kinds whose fields are stored as they are.
_FIELDS = ("facts", "peak", "memory", "used", "failure")


def _apply(log: RankLog, fields: dict[str, Any]) -> None:
    kind = fields.pop("kind")
    if kind == "phase":
        log.phase = Phase(fields["phase"])
    elif kind == "step":
        log.steps.append(
            StepTimes(
                phase=Phase(fields["phase"]),
                index=fields["index"],
                start_ns=fields["start_ns"],
                end_ns=fields["end_ns"],
                loss=None if fields["loss"] is None else float(fields["loss"]),
            )
        )
    elif kind in _LISTS:
        getattr(log, _LISTS[kind]).append(fields)
    elif kind in _FIELDS:
        setattr(log, kind, fields)
    elif kind == "first_step_done":
        log.time_to_first_step_sec = fields["time_to_first_step_sec"]
        log.is_start_alone = fields.get("is_alone", True)
    elif kind == "gpu_canary":
        log.gpu_tflops = [float(value) for value in fields["tflops"]]
    elif kind in _VALUES:
        attribute, name, of_type = _VALUES[kind]
        setattr(log, attribute, of_type(fields[name]))
    elif kind == "done":
        log.is_done = True
    elif kind not in ("heartbeat", "turn", "trial"):
        raise ValueError(f"unknown kind {kind!r}")


LOGS: Final = "processes"
"""The folder of what processes print, in the directory of a trial."""
GRACE_SEC: Final = 20.0
"""Time of the other ranks to record what they observed, after one has failed."""


def end_like(code: int) -> int:
    """Ends this process with the signal that a negative exit code stands for."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL needs no default
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def signal_name(number: int) -> str:
    """Returns the name of a signal; its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def cause_of(bad: Mapping[int, int]) -> int:
    """Returns the rank whose end explains the others."""
    return min(bad, key=lambda rank: bad[rank] >= 0)


# Rank files say what each process observed; one that is killed observes nothing, and
# the others may be killed after it. Without this, the cause could only be guessed.

_NAME = "first_exit.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstExit:
    """What happened first."""

    # The first rank that was killed, or else that failed; None if no process was
    # started.
    rank: int | None = None
    reason: str = ""  # Why, in one line, where it is known; otherwise empty.


def write_first_exit(trial_dir: Path, first: FirstExit) -> None:
    """Records it."""
    text = json.dumps(dataclasses.asdict(first))
    (trial_dir / _NAME).write_text(text, encoding="utf-8")


def read_first_exit(trial_dir: Path) -> FirstExit:
    """Returns what was recorded; nothing where there is nothing that can be read."""
    try:
        fields = untrusted.parsed(untrusted.read_bytes(trial_dir / _NAME) or b"")
        rank, reason = fields["rank"], str(fields["reason"])
    except (UnavailableRecordError, *MALFORMED):
        return FirstExit()
    return FirstExit(rank=rank if isinstance(rank, int) else None, reason=reason)


# A process of the trial writes it at each evaluation, replacing the previous one; the
# parent removes it from a trial that completed, unless requested to keep it.

DIRECTORY = "checkpoint"
"""Relative to the directory of the trial."""


class Savable(Protocol):
    """The part of ``workloads.spec.StepProgram`` that is needed here."""

    def save(self, directory: str) -> str | None:
        """Writes a checkpoint; returns its prefix, or None where there is none."""


class LastGood:
    """Writes checkpoints of a program, and knows where the last one is."""

    def __init__(self, trial_dir: Path) -> None:
        self._trial_dir = trial_dir
        self._found = ""

    def save(self, program: Savable, num_steps: int) -> None:
        """Writes the checkpoint of a program after ``num_steps`` steps."""
        try:
            prefix = program.save(str(self._trial_dir / DIRECTORY))
        except FloatingPointError as error:
            raise FloatingPointError(f"{error}; {self}") from error
        if prefix is not None:
            path = Path(prefix).resolve().relative_to(self._trial_dir.resolve())
            self._found = (
                f"the last good checkpoint, after {num_steps} steps, is "
                f"{Path('trials') / self._trial_dir.name / path} in the study"
            )

    def __str__(self) -> str:
        """Says where the checkpoint is, for a message."""
        return self._found or "there is no checkpoint: none was due before this step"


def remove_checkpoints(trial_dir: Path) -> None:
    """Removes what ``LastGood`` wrote."""
    shutil.rmtree(trial_dir / DIRECTORY, ignore_errors=True)
