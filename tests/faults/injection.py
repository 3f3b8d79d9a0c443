"""One fault in a running trial: what, when, to which process, and its right record.

In a random phase, a random process of the trial gets a random signal: SIGKILL, SIGSEGV,
SIGTERM, or SIGSTOP, which makes it hang.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from pathlib import Path

import psutil

from harness.trial.process_tree import find_tree
from harness.trial.rank_file import rank_path
from results.records.models import Phase, TrialStatus

TIMEOUT_SEC = 45.0
BOUND_SEC = TIMEOUT_SEC + 45.0
"""A trial's time limit, and what its end and clean-up may take."""
PHASES = (Phase.LAUNCH, Phase.BUILD, Phase.FIRST_STEP, Phase.WARMUP, Phase.MEASURE)
SIGNALS = (*[signal.SIGKILL] * 4, *[signal.SIGSEGV] * 3, signal.SIGTERM, signal.SIGSTOP)
"""Hanging trials take their whole time limit, so they are few."""
WORKER, FIRST, MEMBER = "harness.trial.worker", "first process", "harness.launch.gang"
_FIRST = ("harness.trial.ranks", "harness.launch.ray")
_POLL_SEC = 0.02


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to one trial."""

    phase: Phase  # When: after the chosen worker has entered it.
    delay_sec: float  # And how long after that.
    target: str  # The program that gets the signal.
    rank: int  # Of the worker, or of the member that started it.
    signal: signal.Signals  # The signal.

    @classmethod
    def draw(cls, rng, launcher):
        """Returns a random one: mostly of a worker."""
        others = (FIRST,) if launcher == "local" else (FIRST, MEMBER)
        return cls(
            phase=rng.choice(PHASES),
            delay_sec=rng.choice((0.0, 0.05, 0.3)),
            target=rng.choice((WORKER, WORKER, WORKER, *others)),
            rank=rng.randrange(2),
            signal=rng.choice(SIGNALS),
        )

    def __str__(self):
        return (
            f"{self.signal.name} to {self.target} {self.rank}, {self.delay_sec:g} s"
            f" into {self.phase.value}"
        )


def is_due(fault, trial_dir):
    """Whether the worker has entered the phase."""
    if fault.phase is Phase.LAUNCH:
        return find(fault, trial_dir) is not None
    try:
        text = rank_path(trial_dir, fault.rank).read_text(encoding="utf-8")
    except OSError:
        return False
    return f'{{"kind": "phase", "phase": "{fault.phase.value}"' in text


def find(fault, trial_dir):
    """Returns the process that gets the signal, if it runs."""
    for process in find_tree(str(trial_dir.resolve())):
        try:
            command, variables = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        module = next((word for word in command if word.startswith("harness.")), "")
        if fault.target == FIRST:
            is_it = module in _FIRST or Path(command[0]).name == "srun"
        else:
            # A member's command contains that of its worker.
            is_it = module == fault.target and rank_of(variables) == fault.rank
        if is_it:
            return process
    return None


def rank_of(variables):
    """Returns the rank of a process, as its launcher says it."""
    if "TF_CONFIG" in variables:
        return int(json.loads(variables["TF_CONFIG"])["task"]["index"])
    return int(variables["SLURM_PROCID"]) if "SLURM_PROCID" in variables else None


def inject(fault, trial_dir):
    """Waits for the moment and sends the signal; None if the trial ended before."""
    while not is_due(fault, trial_dir):
        if (trial_dir / "status.json").exists():
            return None
        time.sleep(_POLL_SEC)
    time.sleep(fault.delay_sec)
    process = find(fault, trial_dir)
    if process is None:
        return None
    try:
        process.send_signal(fault.signal)
    except psutil.NoSuchProcess:
        return None
    return time.monotonic()


def mistakes(fault, trial, trial_dir, took_sec):
    """Returns what is wrong with the record of a trial that had a fault."""
    found = []
    status, failure = trial.status.status, trial.status.failure
    if took_sec > BOUND_SEC:
        found.append(f"took {took_sec:.0f} s after the fault")
    if left := find_tree(str(trial_dir.resolve())):
        found.append(f"left {[process.pid for process in left]}")
    if status is TrialStatus.OK:
        # The last step may have been over.
        if fault.phase is not Phase.MEASURE and fault.target == WORKER:
            found.append("ok in spite of the fault")
        return found
    first = PHASES.index(fault.phase)
    later = {*PHASES[first:], Phase.SANITY, Phase.REPORT}
    if fault.target != WORKER:  # how far each worker was is not known
        later = {*Phase}
    if failure.phase not in later:
        found.append(f"phase {failure.phase.value}, not {fault.phase.value} or later")
    is_signal_known = fault.target == WORKER and fault.signal is not signal.SIGSTOP
    names = {signal.SIGTERM: ("SIGTERM", f"worker {fault.rank}")}.get(
        fault.signal, (fault.signal.name,)
    )
    if is_signal_known and not any(name in failure.reason for name in names):
        found.append(f"the reason does not name {' or '.join(names)}")
    if is_signal_known and not any(
        f"{word} {fault.rank}" in failure.reason for word in ("rank", "worker")
    ):
        found.append(f"the reason does not name rank {fault.rank}")
    return found
