"""The file ``rank_<k>.jsonl``: everything one process of a trial observed, in order.

One JSON object per line, ``kind`` first. Times are nanoseconds of ``CLOCK_MONOTONIC``,
which all processes of a machine share; those of two machines cannot be compared.

- ``trial``: ``trial_id``, ``nonce``. Whose observations these are; the first line.
- ``clock``: ``host``, which says whose clock it is; of trials of several processes.
- ``phase``: ``phase``, ``ns``. The process enters a phase.
- ``facts``: ``num_parameters``, ``flops_per_example`` (null if not counted),
  ``example_unit``, ``global_batch_size``.
- ``explain``: ``collectives``, the backend's description of them.
- ``step``: ``phase``, ``index``, ``start_ns``, ``end_ns``, ``loss`` (a number, or a
  string such as ``nan``). The index counts over all phases from 0.
- ``turn``: of a relay, after its steps: ``round_index``, ``attempt``, ``start_ns``,
  ``end_ns``, ``num_steps``, and what the process used in it.
- ``first_step_done``: ``time_to_first_step_sec``, ``is_alone``.
- ``peak``: ``flops_per_sec``, ``method``. Of the devices of this process; before the
  window, and only where the floating-point operations of an example were counted.
- ``gpu_canary``: ``tflops`` of a matrix product on each GPU of the process, before the
  warm-up steps; ``reason`` where there is none.
- ``memory``: ``peak_memory_bytes``, ``method``. Of the measured window.
- ``window_metric``: the fields of ``QualityMetric``; counted in the measured window.
- ``heartbeat``: ``ns``. The process is alive, at least every few seconds.
- ``sanity``: ``name``, ``is_passed``, ``detail``.
- ``quality``: the fields of ``QualityMetric``, of what was reached in the end.
- ``point``: the fields of ``QualityPoint``; of a quality run.
- ``change``: ``group``, ``name``, ``sketch``: numbers that say what the first steps
  changed in a model or an optimizer; of a trial that is matched.
- ``failure``: ``phase``, ``reason``, ``exception_type``, ``traceback``.
- ``done``: ``ns``. The process completed.

Lines are flushed as they are written and synced to disk at the end of a phase, so a
killed process leaves its lines so far; only the last one can be incomplete. Steps of
the measured window are formatted and written with the next other line, a heartbeat at
the latest: that takes about 0.1 ms each, which would be part of the window.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.records.models import Phase
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_REASON_LENGTH = 500


class RankFileError(ValueError):
    """A malformed rank file; an internal error or a disk error."""


def rank_path(trial_dir: Path, rank: int) -> Path:
    """Returns the file of one rank."""
    return trial_dir / f"rank_{rank}.jsonl"


def clock_host() -> str:
    """Returns what tells the clock of this machine, since it started, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = socket.gethostname().encode()
    return hashlib.blake2b(boot, digest_size=8).hexdigest()


def one_line(text: str) -> str:
    """Returns the first non-empty line of ``text``, printable and shortened."""
    line = next((s.strip() for s in text.splitlines() if s.strip()), "")
    line = printable(line)
    if len(line) <= MAX_REASON_LENGTH:
        return line
    return line[: MAX_REASON_LENGTH - 3] + "..."


def _step_line(
    phase: Phase, index: int, start_ns: int, end_ns: int, loss: float
) -> str:
    fields = {
        "kind": "step",
        "phase": phase.value,
        "index": index,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "loss": loss if math.isfinite(loss) else repr(loss),
    }
    return json.dumps(fields, allow_nan=False) + "\n"


class RankWriter:
    """Appends to a rank file; safe to use from several threads.

    Attributes:
      phase: The current phase.
    """

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self._path = path
        self._file = path.open("x", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()
        self._clock = clock
        self._measured_steps: list[tuple[int, int, int, float]] = []
        self.phase = Phase.LAUNCH
        self.write("trial", trial_id=path.parent.name, nonce=secrets.token_hex(16))
        self.write("phase", phase=self.phase.value, ns=clock())

    @property
    def directory(self) -> Path:
        """The directory of the trial."""
        return self._path.parent

    def write(self, kind: str, **fields: Any) -> None:
        """Appends one line."""
        line = json.dumps({"kind": kind, **fields}, allow_nan=False)
        with self._lock:
            self._write_measured_steps()
            if not self._file.closed:
                self._file.write(line + "\n")

    def _write_measured_steps(self) -> None:
        """Writes the steps that were held back; needs the lock."""
        steps, self._measured_steps = self._measured_steps, []
        if steps and not self._file.closed:
            lines = [_step_line(Phase.MEASURE, *step) for step in steps]
            self._file.write("".join(lines))

    def enter(self, phase: Phase) -> None:
        """Ends the current phase, synced to disk, and starts the next."""
        self.sync()
        self.phase = phase
        self.write("phase", phase=phase.value, ns=self._clock())

    def step(self, index: int, start_ns: int, end_ns: int, loss: float) -> None:
        """Appends one step of the current phase."""
        if self.phase is Phase.MEASURE:
            with self._lock:
                self._measured_steps.append((index, start_ns, end_ns, loss))
            return
        line = _step_line(self.phase, index, start_ns, end_ns, loss)
        with self._lock:
            self._write_measured_steps()
            if not self._file.closed:
                self._file.write(line)

    def attach(self, name: str, content: bytes) -> None:
        """Writes a file beside that of rank 0; other ranks have the same content."""
        if self._path == rank_path(self._path.parent, 0):
            self._path.with_name(name).write_bytes(content)

    def sync(self) -> None:
        """Syncs all lines so far to disk, to survive a power failure."""
        with self._lock:
            self._write_measured_steps()
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Syncs and closes the file; later writes are dropped."""
        self.sync()
        with self._lock:
            self._file.close()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """One step as it was observed.

    Attributes:
      phase: ``first_step``, ``warmup``, ``measure`` or ``train``.
      index: Counted over all phases from 0.
      start_ns: Before the call.
      end_ns: After all device work.
      loss: Mean over the global batch; can be NaN or infinite.
    """

    phase: Phase
    index: int
    start_ns: int
    end_ns: int
    loss: float

    @property
    def time_sec(self) -> float:
        """Duration of the step."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclasses.dataclass(kw_only=True, slots=True)
class RankLog:
    """The content of a rank file, as far as it was written.

    Attributes:
      rank: The process's rank.
      clock_host: Whose clock its times are of.
      phase: The last phase entered.
      steps: Every step, in order.
      facts: Fields of the ``facts`` line, empty before the build is done.
      time_to_first_step_sec: None before the first step is done.
      is_start_alone: Whether no other trial started beside this one until then.
      peak: Fields of the ``peak`` line, empty if the peak was not measured.
      gpu_tflops: Rates of a matrix product on the GPUs of the process.
      memory: Fields of the ``memory`` line, empty before the window has ended.
      window_metrics: Fields of the ``window_metric`` lines.
      collectives: The backend's description of the collectives in a step.
      sanity: Fields of the ``sanity`` lines.
      quality: Fields of the ``quality`` lines.
      curve: Fields of the ``point`` lines.
      changes: Fields of the ``change`` lines.
      failure: Fields of the ``failure`` line, or None.
      is_done: Whether the process completed.
    """

    rank: int
    clock_host: str = ""
    phase: Phase = Phase.LAUNCH
    steps: list[StepTimes] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    time_to_first_step_sec: float | None = None
    is_start_alone: bool = True
    peak: dict[str, Any] = dataclasses.field(default_factory=dict)
    gpu_tflops: list[float] = dataclasses.field(default_factory=list)
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)
    window_metrics: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    collectives: str = ""
    sanity: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    quality: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    curve: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    changes: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    failure: dict[str, Any] | None = None
    is_done: bool = False


def read_rank(trial_dir: Path, rank: int) -> RankLog:
    """Reads a rank file; a missing one is an empty log in phase ``launch``.

    A last line without its newline was left by a killed process and is skipped.

    Raises:
      RankFileError: A complete line is malformed.
    """
    log = RankLog(rank=rank)
    path = rank_path(trial_dir, rank)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return log
    except OSError as error:
        raise RankFileError(f"{path.name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RankFileError(f"{path.name}: not UTF-8: {error}") from error
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            _apply(log, json.loads(line))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
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
}

# Kinds of one text: the attribute that stores it, and its field.
_TEXTS = {"clock": ("clock_host", "host"), "explain": ("collectives", "collectives")}


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
                loss=float(fields["loss"]),
            )
        )
    elif kind in _LISTS:
        getattr(log, _LISTS[kind]).append(fields)
    elif kind in ("facts", "peak", "memory", "failure"):
        setattr(log, kind, fields)
    elif kind == "first_step_done":
        log.time_to_first_step_sec = fields["time_to_first_step_sec"]
        log.is_start_alone = fields.get("is_alone", True)
    elif kind == "gpu_canary":
        log.gpu_tflops = [float(value) for value in fields["tflops"]]
    elif kind in _TEXTS:
        attribute, name = _TEXTS[kind]
        setattr(log, attribute, str(fields[name]))
    elif kind == "done":
        log.is_done = True
    elif kind not in ("heartbeat", "turn", "trial"):
        raise ValueError(f"unknown kind {kind!r}")
