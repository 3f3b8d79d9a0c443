"""Lets a training loop take part in a scaling study; outside of one it times itself.

    import scaling_client

    run = scaling_client.connect()
    for step in run.steps():  # as many as the harness wants; waits between blocks
        loss = train_step(next(batches))
        step.done(loss=float(loss), examples=32)  # after the device is done

One file for Python 3.8 and later that needs nothing but the standard library: copy it
beside the program. ``docs/client_protocol.md`` says what it writes and sends; the
harness's own worker uses the same classes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import hashlib
import json
import math
import os
import pathlib
import socket
import statistics
import sys
import threading
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

PROTOCOL = 3
"""Version of the messages, of ``client.json`` and of the lines of a rank's file."""
TRIAL_VARIABLE = "REPLICATOR_HARNESS_TRIAL"
"""Environment variable with the directory of the trial."""
ADDRESS_VARIABLE = "REPLICATOR_HARNESS_TURNS"
"""Environment variable with the address; absent where a trial runs alone."""
TRIAL_FILE = "client.json"
"""What a trial asks of its program, in its directory."""
RESET_METHOD = "VmHWM reset at the start of the window"
SAMPLED_METHOD = "resident size read after each step"
_RESET_PEAK = "5"  # proc(5): writing 5 to clear_refs resets VmHWM
MAX_REASON = 500
_HEARTBEAT_NS = 5_000_000_000
_ROUNDING = 1e-6
_Z = 1.959964
"""Quantile of the normal distribution for intervals of 95 %."""


class ClientError(RuntimeError):
    """The program, or the file of this client, does not fit the trial; one line."""


class LostHarnessError(ConnectionError):
    """The harness has closed the connection: it has exited."""


def native_address(address: str) -> str:
    """Returns an address as the kernel expects it: ``@`` begins an abstract one."""
    return "\0" + address[1:]


def rank_path(trial_dir: pathlib.Path, rank: int) -> pathlib.Path:
    return trial_dir / f"rank_{rank}.jsonl"


def clock_host() -> str:
    """Returns what tells the clock of this machine, since it started, from others."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        boot = socket.gethostname().encode()
    return hashlib.blake2b(boot, digest_size=8).hexdigest()


def find_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns the rank of this process, and how many there are, as its launcher says.

    Raises ``ClientError`` if a variable of a launcher is not a number.
    """
    pairs = [
        ("RANK", "WORLD_SIZE"),  # torchrun, and many others
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),  # MPICH and its kin
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # of a step, not of the batch job
        ("LOCAL_RANK", "WORLD_SIZE"),  # Lightning's children
    ]
    for rank, count in pairs:
        if not (environ.get(rank) and environ.get(count)):
            continue
        if rank == "LOCAL_RANK" and environ.get("NODE_RANK", "0") not in ("", "0"):
            raise ClientError(
                "LOCAL_RANK and WORLD_SIZE without RANK, on another node, do not say"
                " which rank this is; pass rank and num_ranks to connect()"
            )
        try:
            return int(environ[rank]), int(environ[count])
        except ValueError:
            raise ClientError(
                f"{rank}={environ[rank]!r} and {count}={environ[count]!r} must be"
                " numbers; unset them, or pass rank and num_ranks to connect()"
            ) from None
    if environ.get("TF_CONFIG"):
        return _rank_of_tf_config(environ["TF_CONFIG"])
    return 0, 1


def _rank_of_tf_config(text: str) -> tuple[int, int]:
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        chiefs = len(cluster.get("chief", ()))
        count = chiefs + len(cluster.get("worker", ()))
        index = int(task.get("index", 0))
        return index + chiefs * (task.get("type") == "worker"), max(count, 1)
    except (AttributeError, TypeError, ValueError):
        raise ClientError(
            f"TF_CONFIG={text!r} is not what TensorFlow reads: JSON with 'cluster' and"
            " 'task'; correct it, or pass rank and num_ranks to connect()"
        ) from None


class Channel:
    """The program's end of the connection to the harness, in an interleaved study."""

    def __init__(self, address: str, rank: int, num_ranks: int = 1) -> None:
        self._num_ranks = num_ranks
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(native_address(address))
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._rank = rank

    @classmethod
    def from_environment(cls, rank: int, num_ranks: int = 1) -> Channel | None:
        address = os.environ.get(ADDRESS_VARIABLE)
        return None if address is None else cls(address, rank, num_ranks)

    def enter(self) -> bool:
        """Says who this is, and waits until it may build; whether it starts alone."""
        own = {"num_ranks": self._num_ranks, "protocol": PROTOCOL}
        return bool(self.ask("imported", **own, has_sustained=True)["is_alone"])

    def ask(self, state: str, **facts: Any) -> dict[str, Any]:
        """Says what was reached, and waits for the next command."""
        message = {"state": state, "rank": self._rank, **facts}
        try:
            self._socket.sendall(json.dumps(message).encode("ascii") + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise LostHarnessError(str(error)) from error
        if not line.endswith("\n"):
            raise LostHarnessError("the harness has closed the connection")
        command: dict[str, Any] = json.loads(line)
        return command

    def close(self) -> None:
        """Closes the connection: the harness waits for this process no longer."""
        self._lines.close()
        self._socket.close()


def set_collector(command: Mapping[str, Any]) -> None:
    """Lets the garbage collector work within a sustained block, else before the block.

    Before the first turn it is off, and what there is then is frozen.
    """
    if command.get("is_sustained"):
        gc.unfreeze()
        gc.enable()
    else:
        gc.disable()
        gc.collect()


@contextlib.contextmanager
def quiet_collector() -> Iterator[bool]:
    """Collects garbage, then keeps the collector off; yields whether it was on."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield was_enabled
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Block:
    """A block that the harness has given, and what this process uses in it."""

    def __init__(self, command: Mapping[str, Any], clock: Callable[[], int]) -> None:
        import resource  # not on Windows, where there are no studies

        self._usage = functools.partial(resource.getrusage, resource.RUSAGE_SELF)
        self._clock = clock
        self.num_steps = command["num_steps"]  # to run, between ``begin`` and ``end``
        names = ("round_index", "attempt", "num_steps")
        # For the record, and the answer to the harness.
        self.facts: dict[str, Any] = {name: command[name] for name in names}

    def begin(self) -> None:
        self._before = self._usage()
        self.facts["start_ns"] = self._clock()

    def end(self, end_ns: int, num_retraces: int = 0) -> None:
        """Adds the facts; ``end_ns`` is the end of the last step."""
        before, after = self._before, self._usage()
        self.facts.update(
            end_ns=end_ns,
            user_sec=after.ru_utime - before.ru_utime,
            system_sec=after.ru_stime - before.ru_stime,
            minor_faults=after.ru_minflt - before.ru_minflt,
            major_faults=after.ru_majflt - before.ru_majflt,
            involuntary_switches=after.ru_nivcsw - before.ru_nivcsw,
            num_retraces=num_retraces,
        )


def blocks(
    channel: Channel,
    file: RankFile,
    memory: Any,
    clock: Callable[[], int],
    warm_step_sec: float,
    *,
    is_collecting: bool = True,
) -> Iterator[Block]:
    """Yields blocks until the harness says that there are no more.

    The garbage collector, which is off, runs between blocks, and within those that are
    sustained, if the program lets it.
    """
    command = channel.ask("ready", step_time_sec=warm_step_sec)
    while command["command"] == "turn":
        set_collector(command if is_collecting else {})
        block = Block(command, clock)
        yield block
        gc.disable()
        memory.sample()
        file.write("turn", **block.facts)
        command = channel.ask("turn", **block.facts)


def shortened(line: str) -> str:
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 3] + "..."


class RankFile:
    """Appends to the file of a rank; safe to use from several threads."""

    def __init__(self, path: pathlib.Path, clock: Callable[[], int]) -> None:
        self._path = path
        self._file = path.open("x", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()
        self._clock = clock
        self._held: list[tuple[str, int, int, int, float | None]] = []
        self.has_failed = False  # whether it says why its process failed
        self.phase = "launch"
        self.write("trial", trial_id=path.parent.name, nonce=os.urandom(16).hex())
        self.write("phase", phase=self.phase, ns=clock())

    @property
    def directory(self) -> pathlib.Path:
        return self._path.parent

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}, allow_nan=False)
        with self._lock:
            self._flush(line + "\n")

    def _flush(self, line: str = "") -> None:
        """Writes the steps that were held back, and a line; needs the lock."""
        names = ("phase", "index", "start_ns", "end_ns", "loss")
        lines = []
        for step in self._held:
            fields = {"kind": "step", **dict(zip(names, step))}  # noqa: B905 (3.8)
            loss = step[-1]
            if loss is not None and not math.isfinite(loss):
                fields["loss"] = repr(loss)
            lines.append(json.dumps(fields, allow_nan=False) + "\n")
        self._held = []
        if not self._file.closed:
            self._file.write("".join((*lines, line)))

    def enter(self, phase: str) -> None:
        """Ends the current phase, synced to disk, and starts the next."""
        self.sync()
        self.phase = phase
        self.write("phase", phase=phase, ns=self._clock())

    def step(self, index: int, start_ns: int, end_ns: int, loss: float | None) -> None:
        """Appends one step of the current phase; those that are measured are held."""
        with self._lock:
            self._held.append((self.phase, index, start_ns, end_ns, loss))
            if self.phase != "measure":
                self._flush()

    def fail(self, error: BaseException, detail: str | None = None) -> None:
        """Appends why this process failed, with phase, and traceback or ``detail``."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        frames = traceback.format_exception(type(error), error, error.__traceback__)
        self.has_failed = True
        self.write(
            "failure",
            phase=self.phase,
            reason=shortened(lines[0]) if lines else type(error).__name__,
            exception_type=type(error).__name__,
            traceback="".join(frames) if detail is None else detail,
        )
        self.sync()

    def attach(self, name: str, content: bytes) -> None:
        """Writes a file beside the one of rank 0; other ranks have the same content."""
        if self._path == rank_path(self._path.parent, 0):
            self._path.with_name(name).write_bytes(content)

    def sync(self) -> None:
        """Syncs all lines so far to disk, to survive a power failure."""
        with self._lock:
            self._flush()
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Syncs and closes the file; later writes are dropped."""
        self.sync()
        with self._lock:
            self._file.close()


class ResidentMemory:
    """Peak resident memory of this process during the measured window.

    Where the kernel allows it, the high-water mark is reset when the window starts, and
    read when it ends: exact, without overhead in the window. Elsewhere the resident
    size is read between steps, which can miss a peak within a step.
    """

    def __init__(self, proc: pathlib.Path = pathlib.Path("/proc/self")) -> None:
        self._proc = proc
        self._sampled_peak = 0
        self.method = SAMPLED_METHOD  # for the record

    def start(self) -> None:
        """Starts the window."""
        self.method = SAMPLED_METHOD
        with contextlib.suppress(OSError):
            (self._proc / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
            # Some kernels accept the write and reset nothing: the mark then stays
            # above the current size.
            if self._status("VmHWM") <= self._status("VmRSS") * 1.01:
                self.method = RESET_METHOD
        self._sampled_peak = self._status("VmRSS")

    def sample(self) -> None:
        """Samples the current size; called between steps."""
        if self.method == SAMPLED_METHOD:
            self._sampled_peak = max(self._sampled_peak, self._status("VmRSS"))

    def peak_bytes(self) -> int:
        if self.method == RESET_METHOD:
            return self._status("VmHWM")
        return max(self._sampled_peak, self._status("VmRSS"))

    def _status(self, name: str) -> int:
        for line in (self._proc / "status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise OSError(f"{self._proc / 'status'} has no {name}")


class Controls:
    """What this trial leaves out, so that the study can say where time is lost.

    A program offers a control by reading it: ``if not run.controls.nosync: ...``.
    ``nosync``: replicas do not communicate. ``synthetic``: every step uses one batch
    that is in memory. ``input_only``: steps only read their batches. ``no_update``:
    steps sum gradients, and do not apply them.
    """

    NAMES = ("nosync", "synthetic", "input_only", "no_update")

    def __init__(self, control: str) -> None:
        self._control = control
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> bool:
        if name not in self.NAMES:
            raise AttributeError(f"no control {name!r}, there are {self.NAMES}")
        self._read.add(name)
        return self._control == name

    def check(self) -> None:
        """Raises ``ClientError`` if the trial is a control that nobody has read."""
        if self._control in self.NAMES and self._control not in self._read:
            raise ClientError(
                f"this trial is the control {self._control!r}, which the program does"
                f" not have: it never reads run.controls.{self._control}; read it, or"
                f" leave {self._control!r} out of --controls"
            )


class TimedStep:
    """One step of the program's loop; ``index`` counts from 0."""

    __slots__ = ("_run", "index", "start_ns")

    def __init__(self, run: ClientRun, index: int, start_ns: int) -> None:
        self.index, self.start_ns, self._run = index, start_ns, run

    def done(self, *, loss: Any = None, examples: int | None = None) -> None:
        """Ends the step; call it once, after all work of the device is done.

        Args:
          loss: Mean over the global batch, or over the batch of this process where
            batches are equal; a number, or what ``float`` waits for and converts.
          examples: Of the global batch, all processes together.

        Raises:
          ClientError: The step was ended before, or has not the trial's batch.
        """
        # Converting may wait for the device: that is part of the step.
        self._run.end_step(self, None if loss is None else float(loss), examples)


class ClientRun:
    """What ``connect`` returns: the loop of a program, measured.

    Attributes:
      is_study: Whether a harness measures; otherwise the program times itself.
      rank: Of this process, from 0.
      num_ranks: How many processes there are.
      num_replicas: Replicas of the trial; as many as processes outside of a study.
      per_replica_batch_size: What the trial asks for; None outside of a study.
      global_batch_size: The same for all replicas together.
      seed: From which the program should derive all that it draws.
      controls: What the trial leaves out.
    """

    is_study = False
    per_replica_batch_size: int | None = None
    global_batch_size: int | None = None
    seed = 0

    def __init__(self, rank: int, num_ranks: int, clock: Callable[[], int]) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.num_replicas = num_ranks
        self.controls = Controls("none")
        self._clock = clock
        self._open: TimedStep | None = None
        self._num_steps = 0
        self._end_ns = 0
        self._num_limit: int | None = None
        self._schedule: Iterator[None] | None = None

    def steps(self, num_steps: int | None = None) -> Iterator[TimedStep]:
        """Yields steps until the harness has seen enough; waits between blocks.

        Args:
          num_steps: Outside of a study: how many; by default as many as take 10 s, or
            a fixed number where there are several processes.

        Raises:
          ClientError: The program does not fit the trial.
          LostHarnessError: The harness has exited.
        """
        self._num_limit = num_steps
        while (step := self.next_step()) is not None:
            yield step

    def next_step(self) -> TimedStep | None:
        """Begins the next step, or returns None when there is none; may wait.

        For loops that a framework drives; raises what ``steps`` does, which calls it.
        """
        if self._open is not None:
            raise ClientError(
                f"step {self._open.index} was not ended: call step.done() once in each"
                " iteration, after the device is done"
            )
        if self._schedule is None:
            self._schedule = self._steps()
        for _ in self._schedule:
            self._open = TimedStep(self, self._num_steps, self._clock())
            return self._open
        return None

    def end_step(
        self, step: TimedStep, loss: float | None, examples: int | None
    ) -> None:
        """Records a step; ``TimedStep.done`` calls it."""
        end_ns = self._clock()
        if self._open is not step:
            raise ClientError(f"step {step.index} was ended twice: call done() once")
        self._open = None
        self._num_steps += 1
        self._end_ns = end_ns
        self._record(step, end_ns, loss, examples)

    def quality(
        self,
        name: str,
        value: float,
        *,
        num_examples: int,
        correct: int | None = None,
        unit: str = "",
        protocol: str = "",
    ) -> None:
        """Records what was learned, measured on held-out examples after the loop.

        Args:
          name: Of the metric, such as ``top_1``.
          value: The figure; with ``correct`` that share of the examples.
          num_examples: How many it was measured on.
          correct: How many were right: gives Wilson's interval.
          unit: Of the value.
          protocol: What else the figure depends on.

        Raises:
          ClientError: The numbers contradict each other.
        """
        value = float(value)
        low, high, method = value, value, "no interval: one figure of one run"
        if correct is not None:
            share = correct / num_examples if num_examples > 0 else math.nan
            if not (0 <= share <= 1 and abs(value - share) <= _ROUNDING):
                raise ClientError(
                    f"quality {name!r} is {value:g}, but {correct} of {num_examples}"
                    f" are {share:g}: pass the share as value, or leave correct out"
                )
            low, high = wilson(correct, num_examples)
            method = "Wilson"
        if not math.isfinite(value) or num_examples < 1:
            raise ClientError(
                f"quality {name!r} is {value:g} on {num_examples} examples: it must be"
                " a finite number, on one example or more"
            )
        self._record_quality(
            name=name,
            value=value,
            unit=unit,
            num_examples=num_examples,
            low=low,
            high=high,
            confidence=0.95,
            method=method,
            protocol=protocol,
        )

    def check(self, name: str, is_passed: bool, detail: str = "") -> None:
        """Records a check of correctness: a trial that fails one gives no number."""
        raise NotImplementedError

    def _steps(self) -> Iterator[None]:
        """Yields once per step, which is done when this continues."""
        raise NotImplementedError

    def _record(
        self, step: TimedStep, end_ns: int, loss: float | None, examples: int | None
    ) -> None:
        raise NotImplementedError

    def _record_quality(self, **fields: Any) -> None:
        raise NotImplementedError


def wilson(correct: int, n: int) -> tuple[float, float]:
    """Returns Wilson's interval of 95 % for a share."""
    share, scale = correct / n, 1 + _Z**2 / n
    centre = share + _Z**2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


class StudyRun(ClientRun):
    """A run that a harness measures."""

    is_study = True

    def __init__(
        self,
        trial: Mapping[str, Any],
        file: RankFile,
        channel: Channel | None,
        rank: int,
        num_ranks: int,
        *,
        num_parameters: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(rank, num_ranks, clock)
        self.num_replicas = int(trial["num_replicas"])
        self.per_replica_batch_size = trial["per_replica_batch_size"]
        self.global_batch_size = trial["global_batch_size"]
        self.seed = int(trial["seed"])
        self.controls = Controls(trial["control"])
        self._trial, self._file, self._channel = trial, file, channel
        self._num_parameters = num_parameters
        self._memory = ResidentMemory()
        self._bad_loss = ""
        self._beat_ns = 0
        self._is_done = False
        self._is_alone = True
        file.write("client", protocol=PROTOCOL, rank=rank, num_ranks=num_ranks)
        if num_ranks > 1:
            file.write("clock", host=clock_host())
        if channel is not None:
            self._is_alone = channel.enter()
        file.enter("build")
        self._build_ns = clock()

    def _steps(self) -> Iterator[None]:
        num_warmup_steps = self._trial["num_warmup_steps"]
        self._file.write(
            "facts",
            num_parameters=self._num_parameters,
            flops_per_example=None,
            example_unit=self._trial["unit"],
            global_batch_size=self.global_batch_size,
        )
        self._file.enter("first_step")
        yield
        self._file.write(
            "first_step_done",
            time_to_first_step_sec=(self._end_ns - self._build_ns) / 1e9,
            is_alone=self._is_alone,
        )
        self._file.enter("warmup")
        for _ in range(num_warmup_steps - 2):
            yield
        if self._channel is not None:
            self._channel.ask("built")
        start_ns = self._clock()
        if num_warmup_steps > 1:
            yield
        else:
            start_ns = self._build_ns
        self.controls.check()
        self._file.enter("measure")
        with quiet_collector() as was_collecting:
            self._memory.start()
            for _ in self._window((self._end_ns - start_ns) / 1e9, was_collecting):
                yield
            peak_bytes = self._memory.peak_bytes()
        self._file.write(
            "memory", peak_memory_bytes=peak_bytes, method=self._memory.method
        )
        self._file.enter("sanity")
        self.check(
            "every_loss_is_finite",
            not self._bad_loss,
            self._bad_loss or f"{self._num_steps} steps",
        )
        self._file.enter("report")
        self._is_done = True
        # What follows may take any time; what was measured is complete.
        self._file.write("done", ns=self._clock())
        self._file.sync()

    def _window(self, warm_step_sec: float, is_collecting: bool) -> Iterator[None]:
        """Yields once per measured step: all in a row, or in turns."""
        if self._channel is None:
            for _ in range(self._trial["num_measured_steps"]):
                yield
                self._memory.sample()
            return
        for block in blocks(
            self._channel,
            self._file,
            self._memory,
            self._clock,
            warm_step_sec,
            is_collecting=is_collecting,
        ):
            block.begin()
            for _ in range(block.num_steps):
                yield
            block.end(self._end_ns)

    def _record(
        self, step: TimedStep, end_ns: int, loss: float | None, examples: int | None
    ) -> None:
        index = step.index
        self._file.step(index, step.start_ns, end_ns, loss)
        if loss is not None and not math.isfinite(loss) and not self._bad_loss:
            self._bad_loss = f"{loss} in step {index}"
        if examples is not None and examples != self.global_batch_size:
            raise ClientError(
                f"step {index} had {examples} examples, the trial has a global batch of"
                f" {self.global_batch_size}: let the program use the batch size that it"
                " is given, count the examples of all processes, and leave out"
                " incomplete batches"
            )
        if end_ns > self._beat_ns:
            self._beat_ns = end_ns + _HEARTBEAT_NS
            self._file.write("heartbeat", ns=end_ns)

    def check(self, name: str, is_passed: bool, detail: str = "") -> None:
        self._file.write(
            "sanity", name=name, is_passed=bool(is_passed), detail=str(detail)
        )

    def _record_quality(self, **fields: Any) -> None:
        self._file.write("quality", **fields)

    def close(self) -> None:
        """Records whether the program did all that was asked for, when it exits."""
        if not self._is_done and not self._file.has_failed:
            error = ClientError(
                f"the loop over run.steps() was left after {self._num_steps} steps,"
                " before the harness had ended it: let it run to its end, over batches"
                " that do not end (as itertools.cycle makes them)"
                if self._num_steps
                else "the program connected, and never ended a step: loop over"
                " run.steps(), and call step.done() in each iteration"
            )
            self._file.fail(error)
            sys.stderr.write(f"scaling_client: {error}\n")
        self._file.sync()
        if self._channel is not None:
            self._channel.close()


class AloneRun(ClientRun):
    """A run without a harness: prints examples per second with an interval."""

    NUM_WARMUP_STEPS = 3
    MIN_SEC = 10.0
    MIN_STEPS = 20
    STEPS_OF_SEVERAL = 50
    NUM_BLOCKS = 10

    def __init__(
        self,
        rank: int,
        num_ranks: int,
        *,
        unit: str = "examples",
        clock: Callable[[], int] = time.monotonic_ns,
        write: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(rank, num_ranks, clock)
        self._unit = unit
        self._write = write or sys.stdout.write
        self._measured: list[tuple[int, int | None]] = []
        self._start_ns = 0

    def _steps(self) -> Iterator[None]:
        for _ in range(self.NUM_WARMUP_STEPS):
            yield
        self._start_ns = self._clock()
        while self._is_needed():
            yield
        self._print_rate()

    def _is_needed(self) -> bool:
        count = len(self._measured)
        if self._num_limit is not None:
            return count + self.NUM_WARMUP_STEPS < self._num_limit
        if self.num_ranks > 1:  # by their own clocks they would end at unlike steps
            return count < self.STEPS_OF_SEVERAL
        used_sec = (self._end_ns - self._start_ns) / 1e9
        return count < self.MIN_STEPS or used_sec < self.MIN_SEC

    def _record(
        self,
        step: TimedStep,
        end_ns: int,
        loss: float | None,  # noqa: ARG002
        examples: int | None,
    ) -> None:
        if step.index >= self.NUM_WARMUP_STEPS:  # windows reach from end to end
            self._measured.append((end_ns, examples))

    def close(self) -> None:
        """Prints the rate of a loop that was left before its end."""
        if self._measured:
            self._print_rate()

    def _block_rates(self, measured: Sequence[tuple[int, int | None]]) -> list[float]:
        """Returns examples, or steps, per second in equal parts of a row of steps."""
        size, start_ns = max(1, len(measured) // self.NUM_BLOCKS), self._start_ns
        rates = []
        for first in range(0, len(measured) - size + 1, size):
            block = measured[first : first + size]
            known = [examples for _, examples in block if examples is not None]
            amount = sum(known) if len(known) == size else size
            rates.append(amount / max((block[-1][0] - start_ns) / 1e9, 1e-9))
            start_ns = block[-1][0]
        return rates[: self.NUM_BLOCKS]

    def _print_rate(self) -> None:
        measured, self._measured = self._measured, []
        rates = self._block_rates(measured)
        if self.rank or not rates:
            return
        is_counted = all(examples is not None for _, examples in measured)
        value, low, high = interval(rates)
        self._write(
            f"scaling_client: {value:.4g} {self._unit if is_counted else 'steps'}/s"
            + (f" [{low:.4g}, {high:.4g}]" if len(rates) > 1 else "")
            + f", {len(measured)} steps after {self.NUM_WARMUP_STEPS} of warm-up; 95 %"
            f" over {len(rates)} parts of this one run, outside of a study\n"
        )

    def check(self, name: str, is_passed: bool, detail: str = "") -> None:
        if not is_passed:
            self._write(f"scaling_client: {name} failed: {detail}\n")

    def _record_quality(self, **fields: Any) -> None:
        self._write(
            "scaling_client: {name} {value:.4g} [{low:.4g}, {high:.4g}], n ="
            " {num_examples}\n".format(**fields)
        )


# 97.5 % quantiles of Student's t with 1 to 9 degrees of freedom.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def interval(rates: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean of up to ten rates with its interval of 95 %."""
    logs = [math.log(max(rate, 1e-300)) for rate in rates]
    centre, half = statistics.fmean(logs), 0.0
    if len(logs) > 1:
        quantile = _QUANTILES[len(logs) - 2]
        half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def read_trial(trial_dir: pathlib.Path) -> dict[str, Any]:
    """Returns what a trial asks of its program; raises ``ClientError``."""
    path = trial_dir / TRIAL_FILE
    try:
        trial: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClientError(
            f"cannot read {str(path)!r}, which says what is measured: {error}; start"
            " the program by a sweep, or unset " + TRIAL_VARIABLE
        ) from None
    if trial.get("protocol") != PROTOCOL:
        raise ClientError(
            f"the harness speaks version {trial.get('protocol')} of the protocol, this"
            f" file {PROTOCOL}: replace {pathlib.Path(__file__).name} by that of the"
            " harness ('python -m harness.client FOLDER' writes it)"
        )
    return trial


def connect(
    *,
    rank: int | None = None,
    num_ranks: int | None = None,
    unit: str = "examples",
    num_parameters: int = 0,
) -> StudyRun | AloneRun:
    """Connects to the study that started this program; without one, times it.

    Call it once in each process, before the model is built: a study may wait here until
    the processes of other cases have started.

    Args:
      rank: Of this process; by default what its launcher says (``find_rank``).
      num_ranks: How many processes there are.
      unit: Plural unit of an example, for what is printed outside of a study.
      num_parameters: Of the model, for the record.

    Raises:
      ClientError: The harness is of another version, or ranks are not distinct.
      LostHarnessError: The harness has exited.
    """
    if rank is None or num_ranks is None:
        detected = find_rank()
        rank = detected[0] if rank is None else rank
        num_ranks = detected[1] if num_ranks is None else num_ranks
    folder = os.environ.get(TRIAL_VARIABLE)
    if folder is None:
        alone = AloneRun(rank, num_ranks, unit=unit)
        atexit.register(alone.close)
        return alone
    files: list[RankFile] = []
    _report_failures(files)
    trial_dir = pathlib.Path(folder)
    try:
        file = RankFile(rank_path(trial_dir, rank), time.monotonic_ns)
    except FileExistsError:
        raise ClientError(
            f"two processes of this trial are rank {rank}: start them with what sets"
            " RANK and WORLD_SIZE (as torchrun, mpirun and srun do), or pass rank and"
            " num_ranks to connect(); connect once in each process"
        ) from None
    except OSError as error:
        raise ClientError(
            f"{TRIAL_VARIABLE}={folder!r} is no directory of a trial"
            f" ({error.strerror}): start the program by a sweep, or unset it"
        ) from None
    files.append(file)
    run = StudyRun(
        read_trial(trial_dir),
        file,
        Channel.from_environment(rank, num_ranks),
        rank,
        num_ranks,
        num_parameters=num_parameters,
    )
    atexit.register(run.close)
    return run


def _report_failures(files: Sequence[RankFile]) -> None:
    """Lets exceptions that end the program reach the record; ours are one line."""
    before = sys.excepthook

    def report(kind: Any, error: BaseException, trace: Any) -> None:
        for file in files:
            if not file.has_failed:
                file.fail(error)
        if isinstance(error, (ClientError, LostHarnessError)):
            sys.stderr.write(f"scaling_client: {error}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = report
