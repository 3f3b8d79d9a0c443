"""Runs many trials of two worker processes in a row, with TensorFlow.

    python tests/faults/run_series.py LAUNCHER TRIALS [--faults] [--seed SEED]

All must be ok, and nothing may be left: no process, no temporary file, no segment of
shared memory. With ``--faults``, a random process of each trial gets a random signal in
a random phase: SIGKILL, SIGSEGV, SIGTERM, or SIGSTOP, which makes it hang. Then the
record must say so: not ok, within the time limit, with the phase and the rank. A trial
that ended before its fault must be ok. Prints a line for each trial and a summary as
JSON; exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from study_files import processes_of

from harness.client.scaling_client import rank_path
from results import Phase, Store, TrialStatus

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("local", "slurm", "ray")
TIMEOUT_SEC = 45.0
BOUND_SEC = TIMEOUT_SEC + 45.0
"""A trial's time limit, and what its end and clean-up may take."""
PHASES = (Phase.LAUNCH, Phase.BUILD, Phase.FIRST_STEP, Phase.WARMUP, Phase.MEASURE)
SIGNALS = (*[signal.SIGKILL] * 4, *[signal.SIGSEGV] * 3, signal.SIGTERM, signal.SIGSTOP)
"""Hanging trials take their whole time limit, so they are few."""
WORKER, FIRST, MEMBER = "harness.trial.worker", "first process", "harness.launch.gang"
_FIRST = ("harness.trial.ranks", "harness.launch.ray")
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
    parser.add_argument("launcher", choices=LAUNCHERS)
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
    with started(
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
        left += [str(p.pid) for path in seen for p in processes_of(path)]
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
    for process in processes_of(trial_dir):
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
    if left := processes_of(trial_dir):
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


# The engines, and the sweep on each.
@contextlib.contextmanager
def started(name, sweep, log, temporary):
    """Runs the engine and the sweep on it while the ``with`` block runs."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    start = {"local": _local, "slurm": _slurm, "ray": _ray}[name]
    with start(sweep, log, variables) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def _command(sweep):
    return [sys.executable, "-m", "harness", *sweep]


@contextlib.contextmanager
def _local(sweep, log, variables):
    with log.open("wb") as out:
        yield subprocess.Popen(
            _command(sweep), stdout=out, stderr=subprocess.STDOUT, env=variables
        )


@contextlib.contextmanager
def _ray(sweep, log, variables):
    # Whatever token this user has; Ray reads the variable when it is imported.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=1, include_dashboard=False)
    try:
        with log.open("wb") as out:
            yield subprocess.Popen(
                [*_command(sweep), "--launcher=ray"],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **variables,
                    "RAY_ADDRESS": cluster.address,
                    "RAY_AUTH_MODE": "disabled",
                },
            )
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def _slurm(sweep, log, variables):
    import slurm_cluster

    if reason := slurm_cluster.missing():
        sys.exit(f"a cluster of Slurm {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        slurm_cluster.running(Path(folder)) as cluster,
    ):
        yield subprocess.Popen(
            cluster.job([*_command(sweep), "--launcher=slurm"], log=log, cwd=ROOT),
            stdout=subprocess.DEVNULL,
            env=variables,
        )


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
