"""The process tree of a trial: its variables, its start, its blocks and its end.

The other end of a session, in which a tree waits for blocks of an interleaved study, is
``harness/client/scaling_client.py``, or a program in any language that keeps to
``docs/client_protocol.md``. Every rank connects on its own; a command goes to all of
them, and is done when all have answered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psutil

from harness import SOURCE_ROOT
from harness.client.scaling_client import ADDRESS_VARIABLE, TRIAL_FILE, native_address
from harness.errors import StudyError
from harness.machine import allocation, environment, gpus, owned_folders
from harness.machine.gpus import NO_GPU
from harness.machine.machine_state import read_oom_kills
from harness.trial import process_tree, rank_file
from harness.trial.measure import COMPATIBLE, PROTOCOL
from harness.trial.rank_file import FirstExit
from replicator.cluster.local_cluster import LineListener
from results import plugins
from results.records import protocol as client_protocol
from results.records.models import Allocator, Block, Placement, TrialSpec
from results.records.protocol import ProtocolError, TrialFile
from results.store import study_store, untrusted, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.launch.gang import RunningGang
    from harness.run.trial_runner import Prepared
    from results.store.study_store import Before

    EndElsewhere = Callable[[Path], None]


VARIABLE: Final = "TMPDIR"


def folder_of(trial_dir: os.PathLike[str]) -> Path:
    """Returns the folder for temporary files of a trial, which finds it again."""
    name = os.fsencode(os.path.realpath(trial_dir))
    digest = hashlib.blake2b(name, digest_size=10).hexdigest()
    return Path(tempfile.gettempdir()) / f"{owned_folders.TRIAL}{digest}"


WORKER_COMMAND = (sys.executable, "-m", "harness.trial.worker")
"""The trial directory is appended."""

_THREAD_VARIABLES = tuple(
    f"{library}_NUM_THREADS" for library in ("MKL", "NUMEXPR", "OMP", "OPENBLAS")
)
# Job systems and shells set these for other processes; a trial must not inherit them.
_DROPPED_VARIABLES = (
    *(ADDRESS_VARIABLE, "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"),
    *("OMP_PROC_BIND", "TF_CONFIG", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"),
)
# glibc gives large buffers back when they are freed, so that those of every step are
# mapped, cleared and faulted in again (docs/measuring.md). They come from the heap only
# if none may be mapped: a threshold above 32 MiB is ignored, and setting any turns its
# growth off. Only the heap of the main arena is kept. A kernel that gives huge pages on
# request gives them to the heap: fewer addresses to translate.
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
    num_oom_kills: int | None  # By the kernel meanwhile; None where nobody counted.
    timeout_sec: float | None = None  # After which the harness killed it; None: not.


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
        **allocation.gpu_thread_variables(spec.variables),
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
    """A trial's running processes, or a gang; none remains after a ``with`` block."""

    process: psutil.Popen

    def __init__(
        self,
        trial_dir: Path,
        variables: Mapping[str, str],
        command: Sequence[str],
        end_elsewhere: EndElsewhere = lambda _: None,
        gang: RunningGang | None = None,
        count_oom_kills: Callable[[], int | None] = read_oom_kills,
    ) -> None:
        self._count_oom_kills = count_oom_kills
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
        writing.check_fence(self._trial_dir)
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
        self._oom_kills_before = self._count_oom_kills()
        with (
            (self._trial_dir / "stdout.log").open("wb") as stdout,
            (self._trial_dir / "stderr.log").open("wb") as stderr,
        ):
            if self._gang is not None:  # each process writes a file of its own
                self._gang.start()
                return
            self.process = psutil.Popen(
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
            process_tree.wait_for_end(self.process, timeout_sec)

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

    def end(self, timeout_sec: float | None = None) -> TrialExit:
        """Ends every process of the tree, and returns how the first one ended."""
        # Also after success: no helper of one trial may disturb the next.
        self.kill()
        after = self._count_oom_kills()
        num_oom_kills = None
        if self._gang is not None:  # this host's count says nothing of theirs
            code, num_oom_kills = self._gang.exit_code, self._gang.num_oom_kills
            if code:
                # The harness records the end of this file with the failure.
                parts = [p.rstrip() for p in self._gang.output if p.strip()]
                path = self._trial_dir / "stderr.log"
                rank_file.put_aside(path)
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n".join(parts) + "\n")
        else:
            code = int(self.process.wait())
            self.process.stdin.close()
            if self._oom_kills_before is not None and after is not None:
                num_oom_kills = after - self._oom_kills_before
        return TrialExit(
            exit_code=-signal.SIGKILL if code is None else code,
            num_oom_kills=num_oom_kills,
            timeout_sec=timeout_sec,
        )

    def finish(self, timeout_sec: float, *, limit_sec: float) -> TrialExit:
        try:
            self.wait(timeout_sec)
        except psutil.TimeoutExpired:
            return self.end(limit_sec)
        return self.end()


def clear_trials(trial_dir: Path, before: Before | None = None) -> None:
    """Ends an earlier attempt, and moves what it measured; ``before`` is told first."""
    if not untrusted.is_there(trial_dir):
        return
    writing.check_fence(trial_dir)
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


_POLL_SEC = 0.25
_MAX_LINE_BYTES = 65_536


class SessionEndedError(RuntimeError):
    """The processes of a trial have ended, or one did not answer in time."""


class Session:
    """A trial that is alive and waits for its blocks."""

    def __init__(self, prepared: Prepared, *, timeout_sec: float) -> None:
        self.prepared = prepared
        self.blocks: list[Block] = []  # discarded ones included
        self.exit: TrialExit | None = None  # None while its processes run
        self.step_time_sec = 0.0  # of a warm step
        self.busy_sec = 0.0  # in which this trial had the machine
        self.awaited = ""  # the state that ``poll`` waits for
        self.num_ranks = prepared.processes.num_ranks  # or as a client says
        # Whether all let their garbage collector work in sustained blocks.
        self.has_sustained = True
        self._deadline = 0.0
        self._answers: dict[int, dict[str, Any]] = {}
        self._timeout_sec = timeout_sec
        self._address = f"@replicator-harness-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = LineListener(
            self._socket,
            max_line_bytes=_MAX_LINE_BYTES,
            stranger_sec=timeout_sec,  # a rank is silent until it has imported all
            user=os.getuid(),
        )
        self._ranks: dict[socket.socket, int] = {}
        self._tree = ProcessTree(
            prepared.trial_dir,
            {**prepared.variables, ADDRESS_VARIABLE: self._address},
            prepared.command,
            count_oom_kills=prepared.settings.count_oom_kills,
        )

    @property
    def spec(self) -> TrialSpec:
        return self.prepared.trial.spec

    @property
    def is_alive(self) -> bool:
        return self.exit is None

    @property
    def cores(self) -> tuple[int, ...]:
        cpusets = self.prepared.env.placement.cpusets
        return tuple(sorted({core for cpuset in cpusets for core in cpuset}))

    def start(self) -> None:
        self._socket.bind(native_address(self._address))
        self._socket.listen()
        self._tree.start()

    def processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._tree.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def resident_bytes(self) -> int:
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def send(self, command: str, **fields: Any) -> None:
        """Gives a command to all ranks; ``receive`` notices one that has ended."""
        line = json.dumps({"command": command, **fields}) + "\n"
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                connection.sendall(line.encode())

    def receive(self, state: str) -> list[dict[str, Any]]:
        """Waits until every rank has reached a state; returns their messages."""
        self.expect(state)
        while (answers := self.poll()) is None:
            pass
        return answers

    def expect(self, state: str) -> None:
        self.awaited = state
        self._deadline = time.monotonic() + self._timeout_sec
        self._answers = {}

    def poll(self) -> list[dict[str, Any]] | None:
        """Waits a moment for the state; returns the messages once all ranks have it."""
        is_over = self._tree.process.poll() is not None
        if is_over or time.monotonic() > self._deadline:
            self._end(None if is_over else self._timeout_sec)
        for connection, line in self._listener.read(_POLL_SEC):
            if line is None:
                self._follow(connection)
            message = self._message(connection, line)
            if message is None:  # of a stranger, who ends nothing
                self._listener.drop(connection)
            else:
                self._answers[message["rank"]] = message
        if len(self._answers) < self.num_ranks:
            return None
        return [self._answers[rank] for rank in sorted(self._answers)]

    def _message(self, connection: socket.socket, line: bytes) -> dict[str, Any] | None:
        """Returns what a rank says; None if a stranger says what no rank would."""
        known = self._ranks.get(connection)
        try:
            message = client_protocol.read_message(line)
        except ProtocolError as error:
            if known is None:
                return None
            self.fail(f"rank {known} sent no message of the protocol: {error}", known)
        rank, state = message["rank"], message["state"]
        if known is None:
            return message if self._meet(connection, message) else None
        if state != self.awaited or known != rank:
            self.fail(
                f"rank {known} said {state!r}"
                + f" as rank {rank}" * (known != rank)
                + f" where {self.awaited!r} was expected: docs/client_protocol.md has"
                " the order of messages",
                known,
            )
        return message

    def _meet(self, connection: socket.socket, message: dict[str, Any]) -> bool:
        """Admits a process that can take part; whether it does."""
        rank, num_ranks = message["rank"], message.get("num_ranks")
        if message["state"] != self.awaited or "protocol" not in message:
            return False
        is_client = self.prepared.is_client
        if is_client and message["protocol"] not in COMPATIBLE:
            self.fail(
                f"rank {rank} speaks version {message['protocol']} of the protocol,"
                f" this harness {PROTOCOL}: give the program the client of this"
                " harness ('python -m harness.client FOLDER' writes it)",
                rank,
            )
        if is_client and num_ranks is not None:
            self.num_ranks = num_ranks if not self._ranks else self.num_ranks
            if num_ranks != self.num_ranks:
                self.fail(
                    f"rank {rank} says that there are {num_ranks} processes, others"
                    f" that there are {self.num_ranks}: pass the same num_ranks to"
                    " connect() in all of them"
                )
        if rank >= self.num_ranks or rank in self._ranks.values():
            if is_client:
                self.fail(
                    f"two processes are rank {rank} of {self.num_ranks}, or there is"
                    " no such rank: number them from 0, as torchrun, mpirun and srun"
                    " do, or pass rank and num_ranks to connect()"
                )
            return False
        self.has_sustained = self.has_sustained and message["has_sustained"]
        self._listener.admit(connection)
        self._ranks[connection] = rank
        return True

    def _follow(self, connection: socket.socket) -> NoReturn:
        """Ends the trial of which a rank has closed its connection."""
        rank = self._ranks.pop(connection, None)
        self._blame(FirstExit(rank=rank))
        grace_sec = self.prepared.settings.grace_sec
        try:
            self._tree.wait(grace_sec)
        except psutil.TimeoutExpired:
            self.fail(
                "a process closed its connection, and the others had not ended"
                f" {grace_sec:g} s later; let all end when one fails, as torchrun and"
                " mpirun do",
                rank,
            )
        self._end()

    def _blame(self, first: FirstExit) -> None:
        """Records what explains the end, unless a process of the trial has done so."""
        folder = self.prepared.trial_dir
        recorded = rank_file.read_first_exit(folder)
        if not recorded.reason and (recorded.rank is None or first.reason):
            rank_file.write_first_exit(folder, first)

    def fail(self, reason: str, rank: int | None = None) -> NoReturn:
        """Ends a trial whose program does not fit the study."""
        self._blame(FirstExit(rank=rank, reason=reason))
        self._end()

    def wait(self, timeout_sec: float | None = None) -> TrialExit:
        """Waits until its processes have exited by themselves, then ends the rest."""
        if self.exit is None:
            limit = self._timeout_sec if timeout_sec is None else timeout_sec
            self.exit = self._tree.finish(limit, limit_sec=self._timeout_sec)
            self.close()
        return self.exit

    def _end(self, timeout_sec: float | None = None) -> NoReturn:
        self.exit = self._tree.end(timeout_sec)
        self.close()
        raise SessionEndedError

    def kill(self) -> None:
        """Kills its processes, whatever state they are in; records nothing."""
        self._tree.kill()
        self.close()

    def close(self) -> None:
        self._listener.close()
        self._ranks.clear()


@contextlib.contextmanager
def busy(*sessions: Session) -> Iterator[None]:
    """Counts the time of the block as time in which they had the machine."""
    started = time.monotonic()
    try:
        yield
    finally:
        for session in sessions:
            session.busy_sec += (time.monotonic() - started) / len(sessions)


def write_client(trial_dir: Path, spec: TrialSpec) -> None:
    assert spec.program is not None
    names = TrialFile.model_fields.keys() - {"protocol", "unit"}
    fields = {name: getattr(spec, name) for name in names}
    asked = TrialFile(**fields, unit=spec.program.unit)
    writing.write_text(trial_dir / TRIAL_FILE, asked.model_dump_json() + "\n")
