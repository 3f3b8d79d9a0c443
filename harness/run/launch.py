"""Starts a trial's process tree and waits for its exit, a timeout or an interrupt."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine.gpus import NO_GPU
from harness.run import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from results.records import Placement, TrialSpec

WORKER_COMMAND = (sys.executable, "-m", "harness.trial.worker")
"""The trial directory is appended."""
CLUSTER_COMMAND = (sys.executable, "-m", "harness.trial.ranks")
"""Starts the processes of a cluster; the worker command and directory are appended."""

_THREAD_VARIABLES = (
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
# Job systems and shells set these for other processes; a trial must not inherit them.
_DROPPED_VARIABLES = (
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "TF_CONFIG",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialExit:
    """How the process of a trial ended.

    Attributes:
      exit_code: As in ``subprocess``: negative for a signal.
      is_timed_out: Whether the harness killed it after ``timeout_sec``.
      timeout_sec: Its time limit.
      duration_sec: From start to end of the process.
      num_oom_kills: Kills by the kernel's out-of-memory killer on this machine in that
        time; None where the kernel does not count them.
    """

    exit_code: int
    is_timed_out: bool
    timeout_sec: float
    duration_sec: float
    num_oom_kills: int | None


def trial_variables(
    spec: TrialSpec,
    placement: Placement,
    trial_dir: Path,
    *,
    gpu_ids: Sequence[str] = (),
    data_dir: str | None = None,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Returns the environment variables of a trial's processes.

    Args:
      spec: The trial.
      placement: Its threads.
      trial_dir: Its directory, which marks its processes.
      gpu_ids: The GPUs it may see.
      data_dir: Directory of TFDS data sets, if not that of TFDS.
      base: The harness's own variables.
    """
    source_root = str(Path(__file__).resolve().parents[2])
    paths = [source_root, *filter(None, [base.get("PYTHONPATH")])]
    variables = {k: v for k, v in base.items() if k not in _DROPPED_VARIABLES}
    num_threads = str(placement.num_intra_op_threads)
    return variables | {
        **dict.fromkeys(_THREAD_VARIABLES, num_threads),
        # Number GPUs as the driver and the harness do.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Set explicitly: visible GPUs change what TensorFlow does, even if unused.
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids) or NO_GPU,
        # Repetitions should also vary the hash order, reproducibly.
        "PYTHONHASHSEED": str(spec.seed),
        # The measured code is the code whose digest is in the spec.
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": base.get("TF_CPP_MIN_LOG_LEVEL", "1"),
        process_tree.MARKER: str(trial_dir.resolve()),
        **({} if data_dir is None else {"TFDS_DATA_DIR": data_dir}),
    }


def run_tree(
    trial_dir: Path,
    variables: Mapping[str, str],
    *,
    timeout_sec: float,
    command: Sequence[str] = WORKER_COMMAND,
) -> TrialExit:
    """Runs a trial's process tree; no process of it remains afterwards.

    An exception in the harness (also an interrupt) kills the tree and propagates.

    Args:
      trial_dir: Where the output and the observations go.
      variables: The environment variables.
      timeout_sec: Time limit.
      command: The worker; the trial directory is appended.
    """
    marker = variables[process_tree.MARKER]
    oom_kills_before = read_oom_kills()
    start = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    is_timed_out = False
    try:
        process = _start(trial_dir, variables, command)
        process.wait(timeout=timeout_sec)
    except subprocess.TimeoutExpired:
        is_timed_out = True
    finally:
        duration_sec = time.monotonic() - start
        # Also after success: no helper of one trial may disturb the next. The
        # marker finds the tree even if the interrupt came while it was starting.
        process_tree.kill_tree(marker, None if process is None else process.pid)
    assert process is not None
    exit_code = process.wait()
    assert process.stdin is not None
    process.stdin.close()
    oom_kills_after = read_oom_kills()
    return TrialExit(
        exit_code=exit_code,
        is_timed_out=is_timed_out,
        timeout_sec=timeout_sec,
        duration_sec=duration_sec,
        num_oom_kills=(
            None
            if oom_kills_before is None or oom_kills_after is None
            else oom_kills_after - oom_kills_before
        ),
    )


def _start(
    trial_dir: Path, variables: Mapping[str, str], command: Sequence[str]
) -> subprocess.Popen[bytes]:
    with (
        (trial_dir / "stdout.log").open("wb") as stdout,
        (trial_dir / "stderr.log").open("wb") as stderr,
    ):
        return subprocess.Popen(
            [*command, str(trial_dir)],
            # Kept open, never written: end-of-file means that the harness has exited.
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=dict(variables),
            # Ctrl-C in the terminal must reach only the harness.
            start_new_session=True,
        )


def read_oom_kills(root: Path = Path("/")) -> int | None:
    """Returns how often the out-of-memory killer struck since boot, or None."""
    try:
        lines = (root / "proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None
