"""Runs many trials of two worker processes in a row, with TensorFlow.

    python tests/faults/run_series.py LAUNCHER TRIALS [--faults] [--seed SEED]

All must be ok, and nothing may be left: no process, no temporary file, no segment of
shared memory. With ``--faults``, a random process of each trial gets a random signal in
a random phase (``injection.py``). Then the record must say so: not ok, within the time
limit, with the phase and the rank. A trial that ended before its fault must be ok.
Prints a line for each trial and a summary as JSON; exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import engines
from injection import BOUND_SEC, TIMEOUT_SEC, Fault, inject, mistakes

from harness.trial.process_tree import find_tree
from results.records.models import TrialStatus
from results.store.study_store import Store

_POLL_SEC = 0.02
_FIRST_TRIAL_SEC = 120.0
_SHARED_MEMORY = Path("/dev/shm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One trial of a series."""

    text: str  # A line.
    name: str  # Its status, or that it ended before its fault.
    wrong: list[str]  # What is wrong with it.


def main():
    """Runs one sweep, prints the result of each of its trials."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("launcher", choices=engines.NAMES)
    parser.add_argument("trials", type=int)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"series-{arguments.launcher}-"))
    temporary, runs = folder / "tmp", folder / "runs"
    temporary.mkdir()
    segments = set(_SHARED_MEMORY.glob("*"))
    rng = random.Random(arguments.seed)
    outcomes = collections.Counter()
    num_wrong, seen, left = 0, [], []
    with engines.started(
        arguments.launcher,
        _sweep(runs, arguments.trials, has_faults=arguments.faults),
        folder / "sweep.log",
        temporary,
    ) as process:
        for trial_dir in _trials(runs, arguments.trials, process):
            seen.append(trial_dir)
            fault = Fault.draw(rng, arguments.launcher) if arguments.faults else None
            outcome = _watch(trial_dir, fault)
            outcomes[outcome.name] += 1
            num_wrong += bool(outcome.wrong)
            wrong = f" WRONG: {'; '.join(outcome.wrong)}" if outcome.wrong else ""
            sys.stdout.write(f"{len(seen)} {outcome.text}{wrong}\n")
            sys.stdout.flush()
        process.wait(120)
        # The engine still runs, and has files of its own.
        left += [str(p.pid) for path in seen for p in find_tree(str(path.resolve()))]
        left += [path.name for path in temporary.iterdir()]
    left += [path.name for path in set(_SHARED_MEMORY.glob("*")) - segments]
    summary = {
        "launcher": arguments.launcher,
        "faults": arguments.faults,
        "trials": len(seen),
        "wrong": num_wrong,
        "left": left,
        "outcomes": dict(outcomes),
        "folder": str(folder),
    }
    sys.stdout.write(json.dumps(summary) + "\n")
    if num_wrong or left or len(seen) < arguments.trials:
        return 1
    shutil.rmtree(folder)
    return 0


def _sweep(runs, num_trials, *, has_faults):
    # Faults need steps in which to strike; without them, a slow machine is no failure.
    steps, timeout_sec = (200, TIMEOUT_SEC) if has_faults else (20, 10 * TIMEOUT_SEC)
    return (
        "sweep", "--workload=d4pg", "--preset=smoke", "--data=synthetic",
        "--backends=multi_worker", "--replicas=2", "--mode=weak", "--no-match",
        f"--repeats={num_trials}", f"--steps=+{steps}",
        "--order=sequential", "--budget=none", "--controls=none", "--study=s",
        f"--runs-dir={runs}",
        f"--timeout={timeout_sec:g}s",
    )  # fmt: skip


def _watch(trial_dir, fault):
    """Follows a trial to its end, and injects its fault."""
    started = time.monotonic()
    sent = None if fault is None else inject(fault, trial_dir)
    deadline = time.monotonic() + 10 * BOUND_SEC
    while not (trial_dir / "status.json").exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SEC)
    took = time.monotonic() - (started if sent is None else sent)
    trial = Store.open(trial_dir.parents[1]).read_trial(trial_dir.name)
    if trial.status is None:
        return Outcome(text=f"{fault}: no status", name="none", wrong=["never ended"])
    status, failure = trial.status.status, trial.status.failure
    if fault is None or sent is None:
        is_ok = status is TrialStatus.OK
        wrong = [] if is_ok else ["failed without a fault"]
    else:
        wrong = mistakes(fault, trial, trial_dir, took)
    text = f"{fault or 'no fault'}: {status.value} in {took:.1f} s"
    if failure:
        text += f", {failure.phase.value}: {failure.reason}"
    is_early = fault is not None and sent is None
    name = "ok before its fault" if is_early and not wrong else status.value
    return Outcome(text=text, name=name, wrong=wrong)


def _trials(runs, num_trials, process):
    """Yields the directory of each trial once it is started, until the sweep ends."""
    seen = set()
    while len(seen) < num_trials:
        trial_dir = _next_trial(runs, seen, process)
        if trial_dir is None:
            return
        seen.add(trial_dir)
        yield trial_dir


def _next_trial(runs, seen, process):
    deadline = time.monotonic() + _FIRST_TRIAL_SEC
    while time.monotonic() < deadline:
        for path in runs.glob("s/trials/*"):
            if path not in seen and (path / "spec.json").exists():
                return path
        if process.poll() is not None:
            return None
        time.sleep(_POLL_SEC)
    return None


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
