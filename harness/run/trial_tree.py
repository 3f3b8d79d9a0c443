"""The process tree of a trial: its variables, its start and its end."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness import SOURCE_ROOT
from harness.client.scaling_client import ADDRESS_VARIABLE
from harness.errors import StudyError
from harness.machine import allocation, environment, gpus, owned_folders
from harness.machine.gpus import NO_GPU
from harness.machine.machine_state import read_oom_kills
from harness.trial import process_tree, rank_file
from results import plugins
from results.records.models import Allocator
from results.store import atomic, study_store, untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.launch.gang import RunningGang
    from results.records.models import Failure, Placement, TrialSpec
    from results.store.study_store import Before

    EndElsewhere = Callable[[Path], None]


# A process that is killed cannot remove its own: TensorFlow, for one, writes a file for
# each function that AutoGraph converts, and removes them at exit. The name follows from
# the trial's directory, so that the same trial finds what an earlier run of it left;
# what no trial finds is removed as in ``harness/machine/owned_folders.py``.

VARIABLE: Final = "TMPDIR"


def folder_of(trial_dir: os.PathLike[str]) -> Path:
    """Returns the folder, beside those of other programs: studies may be far away."""
    name = os.fsencode(os.path.realpath(trial_dir))
    digest = hashlib.blake2b(name, digest_size=10).hexdigest()
    return Path(tempfile.gettempdir()) / f"{owned_folders.TRIAL}{digest}"


WORKER_COMMAND = (sys.executable, "-m", "harness.trial.worker")
"""The trial directory is appended."""

_THREAD_VARIABLES = (
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
# Job systems and shells set these for other processes; a trial must not inherit them.
_DROPPED_VARIABLES = (
    ADDRESS_VARIABLE,
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "TF_CONFIG",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
# glibc gives large buffers back when they are freed, so that those of every step are
# mapped, cleared and faulted in again (docs/measuring.md). They come from the heap
# only if none may be mapped: a threshold above 32 MiB is ignored, and setting any
# turns its growth off. And only the heap of the main arena is kept: those of others
# are unmapped when they are empty, and hold at most 64 MiB. The kernel that gives huge
# pages to who asks gives them to the heap: fewer addresses to translate.
_KEEP: Mapping[str, str] = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
}
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialExit:
    exit_code: int  # As in ``subprocess``: negative for a signal.
    is_timed_out: bool  # Whether the harness killed it after ``timeout_sec``.
    timeout_sec: float  # Its time limit.
    # Kills by the kernel's out-of-memory killer in that time, on the host of the
    # process; None where nobody counted them.
    num_oom_kills: int | None


def trial_variables(
    spec: TrialSpec,
    placement: Placement,
    trial_dir: Path,
    *,
    gpu_ids: Sequence[str] = (),
    data_dir: str | None = None,
    source_root: Path = SOURCE_ROOT,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    # The measured code is the code whose digest is in the spec.
    variables = environment.own_variables(
        {k: v for k, v in base.items() if k not in _DROPPED_VARIABLES},
        source_root,
        *(plugins.folders() if spec.plugins else ()),
    )
    if data_dir is None and base.get("TFDS_DATA_DIR"):
        data_dir = str(Path(base["TFDS_DATA_DIR"]).absolute())
    num_threads = str(placement.num_intra_op_threads)
    return variables | {
        **dict.fromkeys(_THREAD_VARIABLES, num_threads),
        # Number GPUs as the driver and the harness do.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Set explicitly: visible GPUs change what TensorFlow does, even if unused.
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids) or NO_GPU,
        **(gpus.cache_variables(base) if gpu_ids else {}),
        # Repetitions should also vary the hash order, reproducibly.
        "PYTHONHASHSEED": str(spec.seed),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": base.get("TF_CPP_MIN_LOG_LEVEL", "1"),
        process_tree.MARKER: str(trial_dir.resolve()),
        VARIABLE: str(folder_of(trial_dir)),
        **allocator_variables(spec.allocator, base),
        **allocation.of_gpu_threads(spec.variables),
        **({} if data_dir is None else {"TFDS_DATA_DIR": data_dir}),
    }


def allocator_variables(
    allocator: Allocator, base: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables of an allocator; other tunables of the user stay."""
    if allocator is Allocator.DEFAULT:
        return {}
    given = filter(None, base.get(_TUNABLES, "").split(":"))
    return {**_KEEP, _TUNABLES: ":".join((*given, _HUGE_PAGES))}


class ProcessTree:
    """A trial's running processes; none remains after a ``with`` block of it.

    The first process is one of this machine, or there is a gang, here and elsewhere.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        trial_dir: Path,
        variables: Mapping[str, str],
        command: Sequence[str],
        end_elsewhere: EndElsewhere = lambda _: None,
        gang: RunningGang | None = None,
    ) -> None:
        self._end_elsewhere = end_elsewhere
        self._gang = gang
        self._trial_dir = trial_dir.resolve()
        self._variables = dict(variables)
        self._command = (*command, str(self._trial_dir))
        self._scratch: owned_folders.Owned | None = None
        self._oom_kills_before: int | None = None
        self._is_gone = False

    def __enter__(self) -> ProcessTree:  # noqa: PYI034 (Self needs Python 3.11)
        self.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self.kill()

    def start(self) -> None:
        atomic.check_fence(self._trial_dir)
        self._is_gone = False
        folder = folder_of(self._trial_dir)  # anew, and for this user only
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700)
            self._scratch = owned_folders.Owned(folder)
        except OSError as error:
            raise StudyError(
                f"cannot make {str(folder)!r} for temporary files of a trial:"
                f" {error.strerror}; remove it, or set TMPDIR to another folder"
            ) from error
        self._oom_kills_before = read_oom_kills()
        with (
            (self._trial_dir / "stdout.log").open("wb") as stdout,
            (self._trial_dir / "stderr.log").open("wb") as stderr,
        ):
            if self._gang is not None:  # each process writes a file of its own
                self._gang.start()
                return
            self.process = subprocess.Popen(
                self._command,
                # Kept open, never written: end-of-file means: the harness has exited.
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                env=self._variables,
                # "python -m" looks for modules in the current folder first. If that is
                # a source tree, it must not replace the one in PYTHONPATH.
                cwd=self._trial_dir,
                # Ctrl-C in the terminal must reach only the harness.
                start_new_session=True,
            )

    def wait(self, timeout_sec: float) -> None:
        """Waits for the exit of the trial: all its ranks have ended, or one failed."""
        if self._gang is not None:
            self._gang.wait(timeout_sec)
        else:
            process_tree.wait_for_turn(self.process, timeout_sec)

    def kill(self) -> None:
        """Ends every process of the tree; harmless if there is none."""
        if self._is_gone:  # looking takes time, and an engine is asked about its hosts
            return
        try:
            if self._gang is not None:
                self._gang.end()
        finally:
            # The marker finds the tree even if an interrupt came while it was starting.
            process = getattr(self, "process", None)
            marker = self._variables[process_tree.MARKER]
            process_tree.kill_tree(marker, None if process is None else process.pid)
        self._end_elsewhere(self._trial_dir)
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None
        self._is_gone = True

    def end(self, *, timeout_sec: float, is_timed_out: bool) -> TrialExit:
        """Ends every process of the tree, and returns how the first one ended."""
        # Also after success: no helper of one trial may disturb the next.
        self.kill()
        after = read_oom_kills()
        num_oom_kills = None
        if self._gang is not None:  # this host's count says nothing of theirs
            code, num_oom_kills = self._gang.exit_code, self._gang.num_oom_kills
            if code:
                # The harness records the end of this file with the failure.
                parts = [p.rstrip() for p in self._gang.output if p.strip()]
                path = self._trial_dir / "stderr.log"
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n".join(parts) + "\n")
        else:
            code = self.process.wait()
            assert self.process.stdin is not None
            self.process.stdin.close()
            if self._oom_kills_before is not None and after is not None:
                num_oom_kills = after - self._oom_kills_before
        return TrialExit(
            exit_code=-signal.SIGKILL if code is None else code,
            is_timed_out=is_timed_out,
            timeout_sec=timeout_sec,
            num_oom_kills=num_oom_kills,
        )

    def finish(self, timeout_sec: float, *, limit_sec: float) -> TrialExit:
        is_timed_out = False
        try:
            self.wait(timeout_sec)
        except subprocess.TimeoutExpired:
            is_timed_out = True
        return self.end(timeout_sec=limit_sec, is_timed_out=is_timed_out)


def run_tree(tree: ProcessTree, *, timeout_sec: float) -> TrialExit:
    """Runs a trial's process tree; no process of it remains, whatever is raised."""
    with tree:
        return tree.finish(timeout_sec, limit_sec=timeout_sec)


def clear_trials(trial_dir: Path, before: Before | None = None) -> None:
    """Ends the processes of an earlier attempt; keeps what it measured elsewhere.

    What it measured is moved (``results.store.study_store``); what measured nothing,
    or is no folder of a trial, is removed. ``before`` is told of a move first.
    """
    if not untrusted.is_there(trial_dir):
        return
    atomic.check_fence(trial_dir)
    process_tree.kill_tree(os.path.realpath(trial_dir))
    try:
        shutil.rmtree(folder_of(trial_dir), ignore_errors=True)
        if trial_dir.is_symlink() or not trial_dir.is_dir():
            # A symbolic link: its target is not ours and stays.
            trial_dir.unlink()
        elif study_store.is_measured(trial_dir):
            if not untrusted.is_there(trial_dir / "status.json"):
                # Large, and of no use to a failure.
                rank_file.remove_checkpoints(trial_dir)
            study_store.keep_earlier(trial_dir, before)
        else:
            shutil.rmtree(trial_dir)
    except OSError as error:
        raise StudyError(
            f"cannot move {str(trial_dir)!r} of an earlier run out of the way:"
            f" {error.strerror or error}; move or remove it by hand"
        ) from error


# TensorFlow raises an error of its own where its allocator has no memory left. The
# libraries that allocate by themselves (CUDA, cuBLAS, cuDNN, cuSOLVER, NCCL) report it
# in many ways, and TensorFlow passes most of them on as internal or unknown errors.

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


def is_out_of_memory(failure: Failure) -> bool:
    """Whether a trial failed because it ran out of host or device memory."""
    if failure.exception_type in OUT_OF_MEMORY_TYPES:
        return True
    # The first line of an error of a graph is only "Graph execution error:".
    text = f"{failure.reason}\n{failure.traceback or ''}"
    return _MESSAGES.search(text) is not None
