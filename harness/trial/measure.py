"""The measuring loop: builds, steps, checks; independent of wall time.

What is timed: each step between two clock reads, the second after all device work is
done (``StepProgram.run`` promises that). The window reaches from the start of the first
measured step to the end of the last, so what happens between steps counts too.

Python's garbage collector runs before the window, and is frozen and off within it:
a collection is not part of the measured work, and would delay single steps at random.

With ``steps_per_sync`` k above 1, k steps are started before the first of their losses
is read, and share their time equally. Reading the loss of the step before the last
would not do: a copy to the host waits for all that its GPU was given so far.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import math
import re
import time
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psutil

from harness.client.scaling_client import PROTOCOL, blocks, quiet_collector
from harness.machine import disturbance
from harness.trial.rank_file import DIRECTORY, one_line
from results.records import measuring
from results.records.models import Allocator, BudgetUnit, Control, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from harness.client.scaling_client import Channel, RankFile
    from results.records.models import Budget, TrialSpec
    from workloads.program import StepProgram

    RunCounted: TypeAlias = Callable[[Callable[[], int]], Iterable[Mapping[str, Any]]]


__all__ = ["PROTOCOL"]

COMPATIBLE: Final = (2, PROTOCOL)
"""Versions that both sides of a gate may have: 2 does not say which version it is."""


def measure_trial(
    build: Callable[[], StepProgram],
    spec: TrialSpec,
    writer: RankFile,
    *,
    example_unit: str,
    memory: Any,  # Measures the peak of the window, as ``ResidentMemory`` does.
    clock: Callable[[], int] = time.monotonic_ns,
    channel: Channel | None = None,
    count_traces: Callable[[], int] = lambda: 0,
    measure_peak: Callable[[str], tuple[float, str]] | None = None,
    before_warmup: Callable[[], None] = lambda: None,
    run_counted: RunCounted | None = None,
) -> None:
    """Runs one trial in this process and writes all observations."""
    is_alone = channel is None or channel.enter()
    writer.enter(Phase.BUILD)
    build_start_ns = clock()
    program = build()
    _check_batches(program, spec)
    writer.write(
        "facts",
        num_parameters=program.num_parameters,
        flops_per_example=program.flops_per_example,
        example_unit=example_unit,
        global_batch_size=program.global_batch_size,
    )
    steps = Steps(program, writer, clock, spec)
    writer.enter(Phase.FIRST_STEP)
    first_end_ns = steps.run()
    writer.write(
        "first_step_done",
        time_to_first_step_sec=(first_end_ns - build_start_ns) / 1e9,
        is_alone=is_alone,
    )
    writer.enter(Phase.WARMUP)
    before_warmup()
    reservation = steps.warm_up(channel, run_counted)
    if measure_peak is not None and program.flops_per_example:
        peak, method = measure_peak(program.compute_dtype)
        writer.write("peak", flops_per_sec=peak, method=method)
    writer.enter(Phase.MEASURE)
    with quiet_collector():
        memory.start()
        program.start_window()
        if channel is None:
            assert spec.num_measured_steps is not None
            for num_steps in steps.blocks(spec.num_measured_steps):
                steps.run(num_steps)
                memory.sample()
        else:
            program.pause()  # background work, such as actors, except in blocks
            warm_sec = steps.step_time_sec[-1]
            for block in blocks(channel, writer, memory, clock, warm_sec):
                program.resume()
                num_traces = count_traces()
                block.begin()
                block.end(steps.run(block.num_steps), count_traces() - num_traces)
                program.pause()
        peak_memory_bytes = memory.peak_bytes() - reservation.unused_bytes()
    writer.write("memory", peak_memory_bytes=peak_memory_bytes, method=memory.method)
    for metric in program.window_metrics():
        writer.write("window_metric", **fields_of(metric))
    quality = None
    if spec.budget is not None:
        writer.enter(Phase.TRAIN)
        quality = train(program, spec.budget, steps, writer)
    writer.enter(Phase.SANITY)
    is_sane = steps.check()
    writer.enter(Phase.REPORT)
    writer.write("explain", collectives=program.explain())
    if spec.is_evaluated and is_sane:
        if quality is None:
            quality = [fields_of(metric) for metric in program.evaluate()]
        for fields in quality:
            writer.write("quality", **fields)
    writer.write("done", ns=clock())


def _check_batches(program: StepProgram, spec: TrialSpec) -> None:
    for name in ("per_replica_batch_size", "global_batch_size"):
        got, expected = getattr(program, name), getattr(spec, name)
        if spec.control is Control.INDEPENDENT:  # one of several programs
            expected = spec.per_replica_batch_size
        if got != expected:
            raise ValueError(f"the program has {name} {got}, the trial {expected}")


# Evaluations split the budget into equal parts. The number of steps of a part is
# decided before it starts, and is the same in all processes: each with its own clock
# could stop at a different step, and a step needs all.

_NUM_RECENT_STEPS = 50
"""Of which the time of a step is estimated, at most."""


def train(
    program: StepProgram, budget: Budget, steps: Steps, writer: RankFile
) -> list[dict[str, Any]]:
    """Trains until the budget is used up, and measures quality in between."""
    folder = writer.directory
    last_good = "there is no checkpoint: none was due before this step"
    quality: list[dict[str, Any]] = []
    for number in range(1, budget.num_evaluations + 1):
        used, per_step = steps.used(budget.unit)
        left = budget.amount * number / budget.num_evaluations - used
        num_steps = math.ceil(left / per_step)
        # At least one: each point belongs to a different model.
        for _ in range(program.agree(max(num_steps, 1))):
            steps.run()
            if steps.bad_loss:
                # Training on would only waste time.
                raise FloatingPointError(
                    f"the loss became {steps.bad_loss}, in training: lower the learning"
                    f" rate, or check the data of that step; {last_good}"
                )
        # Before the evaluation, during which actors may continue.
        num_environment_steps = program.num_environment_steps()
        quality = [fields_of(metric) for metric in program.evaluate()]
        samples = program.samples()
        name = f"samples_{steps.num_steps:08}.png" if samples else ""
        if samples:
            writer.attach(name, samples)
        writer.write(
            "point",
            num_steps=steps.num_steps,
            num_examples=steps.num_examples,
            train_time_sec=steps.train_time_sec,
            num_environment_steps=num_environment_steps,
            quality=quality,
            samples=name,
        )
        try:
            prefix = program.save(str(folder / DIRECTORY))
        except FloatingPointError as error:
            raise FloatingPointError(f"{error}; {last_good}") from error
        if prefix is not None:
            path = Path(prefix).resolve().relative_to(folder.resolve())
            last_good = (
                f"the last good checkpoint, after {steps.num_steps} steps, is "
                f"{Path('trials') / folder.name / path} in the study"
            )
    return quality


def fields_of(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def whole_blocks(num_steps: int, spec: TrialSpec) -> int:
    """Returns as many steps or more, of which no block is smaller than others."""
    return math.ceil(num_steps / spec.steps_per_sync) * spec.steps_per_sync


class Steps:
    """Runs single steps, times and records them."""

    def __init__(
        self,
        program: StepProgram,
        writer: RankFile,
        clock: Callable[[], int],
        spec: TrialSpec,
    ) -> None:
        self._spec = spec
        self._program = program
        self._writer = writer
        self._clock = clock
        self.step_time_sec: list[float] = []  # of all steps, the first one included
        self.bad_loss = ""  # the first that is not finite, with step and replicas

    @property
    def num_steps(self) -> int:
        return len(self.step_time_sec)

    @property
    def num_examples(self) -> int:
        return self.num_steps * self._program.global_batch_size

    @property
    def train_time_sec(self) -> float:
        """Time in steps; the first one is left out, since it traces."""
        return sum(self.step_time_sec[1:])

    def used(self, unit: BudgetUnit) -> tuple[float, float]:
        """Returns the part of a budget that was used, and that a step will use."""
        if unit is BudgetUnit.STEPS:
            return self.num_steps, 1
        if unit is BudgetUnit.EXAMPLES:
            return self.num_examples, self._program.global_batch_size
        recent = self.step_time_sec[1:][-_NUM_RECENT_STEPS:]
        step_sec = sum(recent) / len(recent) if recent else math.inf
        return self.train_time_sec, step_sec

    def blocks(self, num_steps: int) -> list[int]:
        """Returns the sizes of the blocks in which steps are started together."""
        full, rest = divmod(num_steps, self._spec.steps_per_sync)
        return [self._spec.steps_per_sync] * full + [rest] * bool(rest)

    def run(self, num_steps: int = 1) -> int:
        """Runs steps, as many at a time as may be; returns their end in nanoseconds."""
        end_ns = 0
        for block in self.blocks(num_steps):
            start_ns, first = self._clock(), self.num_steps
            if block == 1:
                losses = [self._program.run(1)]
                end_ns = self._clock()
                self._check(first, losses[0])
            else:  # all are started before a loss is read, and share the time equally
                readers = [self._program.dispatch() for _ in range(block)]
                losses = []
                for index, read_loss in enumerate(readers, start=first):
                    losses.append(read_loss())
                    self._check(index, losses[-1])
                end_ns = self._clock()
            span_ns = end_ns - start_ns
            ends = [start_ns + span_ns * done // block for done in range(block + 1)]
            spans = itertools.pairwise(ends)
            for index, (span, loss) in enumerate(
                zip(spans, losses, strict=True), first
            ):
                self._writer.step(index, *span, loss)
                self.step_time_sec.append((span[1] - span[0]) / 1e9)
        return end_ns

    def warm_up(
        self, channel: Channel | None, run_counted: RunCounted | None
    ) -> Reservation:
        """Runs warm-up steps; interleaved, the last one when the harness says so."""
        reservation = Reservation()
        num_steps = self._spec.num_warmup_steps - 1  # the first one was timed alone
        for _ in range(num_steps - 1):
            self.run()
        if channel is not None:
            self._program.pause()
            command = channel.ask("built")
            if self._spec.allocator is Allocator.KEEP and self._spec.device == "cpu":
                reservation = reserve(command["heap_fraction"])
            self._program.resume()
        if num_steps and run_counted is not None:
            for count in run_counted(self.run):
                self._writer.write("window_metric", **count)
        elif num_steps:
            self.run()
        return reservation

    def check(self) -> bool:
        """Records the checks of the losses and of the program; whether all passed."""
        self._writer.write(
            "sanity",
            name="every_loss_is_finite",
            is_passed=not self.bad_loss,
            detail=self.bad_loss or f"{self.num_steps} losses, all steps",
        )
        is_sane = not self.bad_loss
        for check in self._program.sanity():
            self._writer.write("sanity", **fields_of(check))
            is_sane = is_sane and check.is_passed
        return is_sane

    def _check(self, index: int, loss: float) -> None:
        if math.isfinite(loss) or self.bad_loss:
            return
        self.bad_loss = f"{loss} in step {index}"
        # Ask now: the update spreads it to all replicas.
        losses = self._program.losses_of_replicas()
        bad = [str(i) for i, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad and len(losses) > 1:
            plural = "s" * (len(bad) > 1)
            seen = f"replica{plural} {', '.join(bad)} of {len(losses)}"
            self.bad_loss += f", seen by {seen}"


# GPUs of one model have nearly the same rate, unless one is hot, capped or broken.
# ``doctor`` times it on all GPUs, and each trial on its own, before its window.

CHAIN = 20
"""Products that are queued before the device is waited for."""
TRIAL_SIZE = 4096
"""Rows of a matrix in a trial: a few of them, in bfloat16, fit beside any program."""
TRIAL_SEC = 0.1
"""Time for each GPU of a trial, after as much to raise its clock."""


def product_rate(device: str, size: int, dtype: str = "") -> Callable[[float], float]:
    """Returns what times matrix products on a device: for so long, in products/s."""
    import tensorflow as tf

    with tf.device(device):
        # Of this scale a product of many stays near 1, and no value overflows.
        matrix = tf.random.stateless_uniform([size, size], [1, 2]) * (2.0 / size)
        dtype = dtype or ("bfloat16" if "GPU" in device else "float32")
        matrix = tf.cast(matrix, dtype)

    def multiply() -> None:
        with tf.device(device):
            product: Any = matrix
            for _ in range(CHAIN):
                product = tf.matmul(product, matrix)
            # Reading one value waits for all of them.
            tf.reduce_sum(tf.cast(product, tf.float32)).numpy()

    return functools.partial(disturbance.rate, multiply, CHAIN)


def tflops(device: str, size: int, duration_sec: float) -> float:
    """Returns the rate on a device in TFLOP/s, in its clock under load."""
    rate = product_rate(device, size)
    rate(duration_sec)
    return rate(duration_sec) * 2 * size**3 / 1e12


def write_tflops(
    writer: RankFile,
    devices: Sequence[str],
    *,
    size: int = TRIAL_SIZE,
    duration_sec: float = TRIAL_SEC,
) -> None:
    """Times the product on each GPU of a trial, and records it, or why it could not."""
    if not devices:
        return
    import tensorflow as tf

    try:
        rates = [tflops(device, size, duration_sec) for device in devices]
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        writer.write("gpu_canary", tflops=[], reason=one_line(str(error)))
    else:
        writer.write("gpu_canary", tflops=rates, reason="")


# With an allocator that keeps freed memory, the heap still grows for some steps:
# buffers leave holes that the next ones do not fit into. Each growth takes page faults,
# which the steps of a long training do not have. An interleaved study has no time for a
# dozen warm-up steps of every process, so the pages are made at once.

FRACTION: Final = 0.25
"""Of the memory that a process has after its first steps."""
_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """Pages that were made for the growth of the heap."""

    num_bytes: int = 0
    top_bytes: int = 0  # Free at the end of the heap just after, with pages not made.

    def unused_bytes(self) -> int:
        """Returns how much of it the heap has not grown into so far."""
        if not self.num_bytes:
            return 0
        num_not_made = self.top_bytes - self.num_bytes
        return min(max(_top_bytes(_libc()) - num_not_made, 0), self.num_bytes)


def reserve(fraction: float) -> Reservation:
    """Adds to the heap of this process, whose allocator keeps what is freed."""
    libc = _libc()
    if not fraction or not hasattr(libc, "mallinfo2"):  # needs glibc 2.33 or newer
        return Reservation()
    num_bytes = round(fraction * psutil.Process().memory_info().rss)
    address = libc.malloc(num_bytes)
    if not address:
        return Reservation()
    ctypes.memset(address, 0, num_bytes)
    libc.free(address)
    return Reservation(num_bytes=num_bytes, top_bytes=_top_bytes(libc))


def _top_bytes(libc: ctypes.CDLL) -> int:
    return int(libc.mallinfo2().keepcost)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _MallInfo
    return libc


# What model FLOP utilisation is relative to (Chowdhery et al., "PaLM: Scaling Language
# Modeling with Pathways", 2022, appendix B), measured on the devices of the trial.

METHOD: Final = (
    "fastest of {count} runs of {size} x {size} matrix products in {dtype}, {number} at"
    " a time"
)
_CPU_SIZE: Final = 512
_COUNT: Final = 3
_RUN_SEC: Final = 0.05


def measure_peak(
    dtype: str, *, num_replicas: int, num_gpus: int = 0
) -> tuple[float, str]:
    """Returns operations per second, and how they were measured, in about 0.3 s."""
    devices = [f"GPU:{index}" for index in range(num_gpus)] or ["CPU:0"] * num_replicas
    size = TRIAL_SIZE if num_gpus else _CPU_SIZE
    rates = [product_rate(device, size, dtype) for device in devices]
    with futures.ThreadPoolExecutor(len(rates)) as pool:
        # The first run starts threads, and raises clocks.
        runs = [
            sum(pool.map(lambda rate: rate(_RUN_SEC), rates)) for _ in range(_COUNT + 1)
        ]
    fastest = max(runs[1:])
    method = METHOD.format(count=_COUNT, size=size, dtype=dtype, number=len(rates))
    return fastest * 2 * size**3, method


# The last warm-up step is counted, before the window: it is in no figure.

_PROTOCOL = "of the last warm-up step"


def exact_metric(
    name: str, value: float, *, unit: str, n: int, protocol: str
) -> dict[str, object]:
    """Returns the fields of a ``window_metric`` line of a count."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "num_examples": n,
        "low": value,
        "high": value,
        "confidence": 1.0,
        "method": measuring.EXACT,
        "protocol": protocol,
    }


class StepCounter:
    replicator: Any  # What the program is built on.

    def __init__(
        self,
        recorded: Callable[[], AbstractContextManager[Sequence[Any]]],
        count_traces: Callable[[], int],
    ) -> None:
        self._recorded = recorded
        self._count_traces = count_traces
        self._num_traces = 0

    def start(self) -> None:
        """The first step has ended: what is traced from now on is traced again."""
        self._num_traces = self._count_traces()

    def run(self, run_step: Callable[[], object]) -> list[dict[str, object]]:
        with self._recorded() as started:
            run_step()
        num_retraces = self._count_traces() - self._num_traces
        counts = {measuring.RETRACES: num_retraces, **self.replicator.counts()}
        if started:  # some backends start their steps in another way
            counts[measuring.DISPATCHES] = len(started)
            counts[measuring.GRAPH_NODES] = sum(one.num_nodes() for one in started)
        return [
            exact_metric(name, counts[name], unit=unit, n=1, protocol=_PROTOCOL)
            for name, unit in measuring.UNITS.items()
            if name in counts
        ]


_LIBRARY = re.compile(r"\s(/\S*/libnccl\.so\S*)$", re.MULTILINE)
_NEW_CODES = 10_000  # from 2.9 on, a number has two digits more for the major version


def nccl_version() -> str | None:
    """Returns the version of NCCL in memory, such as 2.25.1; None without NCCL."""
    code = ctypes.c_int()
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        match = _LIBRARY.search(maps)
        if match is None or ctypes.CDLL(match[1]).ncclGetVersion(ctypes.byref(code)):
            return None
    except (OSError, AttributeError):
        return None
    scale = _NEW_CODES if code.value >= _NEW_CODES else 1_000
    return f"{code.value // scale}.{code.value % scale // 100}.{code.value % 100}"
