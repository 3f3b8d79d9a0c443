"""The file ``rank_<k>.jsonl``: everything one process of a trial observed, in order.

One JSON object per line, ``kind`` first; ``results/records/protocol.py`` has a model of
each kind. Times are nanoseconds of ``CLOCK_MONOTONIC``, which all processes of a
machine share. Lines are flushed as they are written, so a killed process leaves its
lines so far; only the last one can be incomplete. Steps of the measured window are
written with the next other line: 0.1 ms each would be part of the window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
from typing import TYPE_CHECKING, Any, Final

from harness.client.scaling_client import rank_path, shortened
from results.errors import UnavailableRecordError
from results.records.models import Phase
from results.records.texts import printable
from results.store import untrusted, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    Fields = dict[str, Any]


__all__ = ["rank_path"]

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
    phase: Phase  # ``first_step``, ``warmup``, ``measure`` or ``train``.
    index: int  # Counted over all phases from 0.
    start_ns: int  # Before the call.
    end_ns: int  # After all device work.
    # Mean over the global batch; can be NaN or infinite. None if not known.
    loss: float | None

    @property
    def time_sec(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclasses.dataclass(kw_only=True, slots=True)
class RankLog:
    """The content of a rank file, as far as it was written."""

    rank: int
    phase: Phase = Phase.LAUNCH  # The last phase entered.
    steps: list[StepTimes] = dataclasses.field(default_factory=list)  # In order.
    # The fields of all other lines, by kind.
    lines: dict[str, list[Fields]] = dataclasses.field(default_factory=dict)

    def all(self, kind: str) -> list[Fields]:
        return self.lines.get(kind, [])

    def last(self, kind: str) -> Fields:
        return next(reversed(self.all(kind)), {})

    @property
    def num_ranks(self) -> int | None:
        """How many there are, as the program says; None where the plan says it."""
        return self.last("client").get("num_ranks")

    @property
    def failure(self) -> Fields | None:
        return next(reversed(self.all("failure")), None)

    @property
    def is_done(self) -> bool:
        return "done" in self.lines


def put_aside(path: Path) -> str:
    """Renames what a program left that no record can be; says what, or ""."""
    try:
        untrusted.read_bytes(path)
    except untrusted.DamagedFileError as error:
        writing.check_fence(path)
        kept = path.rename(path.with_name(f"left-{secrets.token_hex(4)}-{path.name}"))
        return (
            f"{path.name}: {error}, and a record of the trial belongs there; let the"
            f" program write into another folder (it is kept as {kept.name!r})"
        )
    return ""


def read_rank(trial_dir: Path, rank: int) -> RankLog:
    """Reads a rank file; a missing one is an empty log in phase ``launch``."""
    from results.records.protocol import RANK_KINDS

    log = RankLog(rank=rank)
    path = rank_path(trial_dir, rank)
    try:
        text = untrusted.read_text(path)
    except (untrusted.DamagedFileError, UnavailableRecordError) as error:
        raise RankFileError(f"{path.name}: {error}") from error
    for number, line in enumerate((text or "").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):  # of a killed process
            break
        try:
            _apply(log, untrusted.parsed(line), RANK_KINDS)
        except MALFORMED as error:
            raise RankFileError(
                f"{path.name} line {number} is malformed:"
                f" {type(error).__name__}: {error}"
            ) from error
    return log


_CHECKED: Final[Mapping[str, Mapping[str, Callable[[Any], object]]]] = {
    "clock": {"host": str},
    "client": {"num_ranks": int},
    "explain": {"collectives": str},
    "first_step_done": {"time_to_first_step_sec": float},
    "gpu_canary": {"tflops": lambda rates: [float(rate) for rate in rates]},
    "nccl": {"version": str},
}
"""Fields that are read before anything is concluded from the whole file."""


def _apply(log: RankLog, fields: Fields, kinds: Collection[str]) -> None:
    kind = fields.pop("kind")
    if kind not in kinds:
        raise ValueError(f"unknown kind {kind!r}")
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
    else:
        for name, of_type in _CHECKED.get(kind, {}).items():
            fields[name] = of_type(fields[name])
        log.lines.setdefault(kind, []).append(fields)


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
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def cause_of(bad: Mapping[int, int], trial_dir: Path) -> int:
    """Returns the rank whose end explains the others; ``bad`` is in their order."""

    # One that was killed, or else one that could not say why it ended: under load, the
    # end of a rank that lost it can be seen first.
    def order(rank: int) -> tuple[bool, bool]:
        try:
            is_known = read_rank(trial_dir, rank).failure is not None
        except RankFileError:
            is_known = False
        return bad[rank] >= 0, is_known

    return min(bad, key=order)


# A process that is killed observes nothing, and the others may be killed after it.

_NAME = "first_exit.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FirstExit:
    rank: int | None = None  # That was killed first, or else failed; None: none ran.
    reason: str = ""  # Why, in one line, where it is known; otherwise empty.


def write_first_exit(trial_dir: Path, first: FirstExit) -> None:
    text = json.dumps(dataclasses.asdict(first))
    put_aside(trial_dir / _NAME)
    (trial_dir / _NAME).write_text(text, encoding="utf-8")


def read_first_exit(trial_dir: Path) -> FirstExit:
    """Returns what was recorded; nothing where there is nothing that can be read."""
    try:
        fields = untrusted.parsed(untrusted.read_bytes(trial_dir / _NAME) or b"")
        rank, reason = fields["rank"], str(fields["reason"])
    except (UnavailableRecordError, *MALFORMED):
        return FirstExit()
    return FirstExit(rank=rank if isinstance(rank, int) else None, reason=reason)


DIRECTORY = "checkpoint"
"""In the directory of a trial: written at each evaluation, removed when it is ok."""


def remove_checkpoints(trial_dir: Path) -> None:
    shutil.rmtree(trial_dir / DIRECTORY, ignore_errors=True)
