"""The process of a trial of a user's program: starts it and records what it prints.

    python -m harness.command.worker <folder> <trial directory>

It reads ``spec.json`` and ``env.json``, pins itself (the program inherits that), and
writes ``rank_0.jsonl``, as the worker of a workload does: so time limits, phases,
causes and clean-up of a trial are the same. Numbers of the program are lines
``reading`` with ``ns`` and ``value``.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.client.scaling_client import LostHarnessError, RankFile
from harness.command import numbers, program, running
from harness.command.reader import (
    POLL_SEC,
    CountReader,
    LineReader,
    MetricFile,
    Reading,
    ReadingError,
    advances,
    check_missed,
    check_positive,
)
from harness.command.running import CommandError, Run
from harness.machine import allocation, gpus
from harness.trial import process_tree
from harness.trial.rank_file import end_like, rank_path, signal_name
from results.records.limits import MAX_STEPS
from results.records.models import (
    Environment,
    Evidence,
    Phase,
    QualityMetric,
    RankTimes,
    Readings,
    TrialResult,
    TrialSpec,
)
from results.records.program import FEWEST_OF_WINDOW, MAX_ADVANCES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from harness.trial.rank_file import RankLog
    from results.records.models import Placement


# A number stands for the time of a global batch at the rate that it says, and the
# window of a trial is the sum of these times after warm-up: its throughput is the
# harmonic mean of the rates, that of a program which prints after equal numbers of
# steps.


def make_result(trial_id: str, spec: TrialSpec, log: RankLog) -> TrialResult:
    assert spec.program is not None
    readings, used = log.all("reading"), log.last("used")
    if not readings:
        raise ValueError("the command printed no number")
    metric = numbers.parse_metric(spec.program.metric)
    starts_ns = [reading["ns"] for reading in readings]
    remarks: tuple[str, ...]
    if spec.program.is_wall:
        num_warmup, evidence, remarks = 0, Evidence.WINDOW, ()
        starts_ns = [readings[0]["ns"] - round(readings[0]["value"] * 1e9)]
    else:
        num_warmup, evidence, remarks = judge(starts_ns, spec.num_warmup_steps)
    sizes = spec.global_batch_size, spec.num_replicas
    warmup, measured = (
        # A rate of 0 is none yet.
        tuple(metric.seconds(one["value"], *sizes) for one in part if one["value"])
        for part in (readings[:num_warmup], readings[num_warmup:])
    )
    if not measured:
        raise ValueError("the command printed no number above 0")
    return TrialResult(
        trial_id=trial_id,
        example_unit=spec.program.unit,
        num_parameters=0,
        global_batch_size=spec.global_batch_size,
        num_measured_steps=len(measured),
        window_sec=math.fsum(measured),
        ranks=(
            RankTimes(
                rank=0,
                time_to_first_step_sec=0.0,
                warmup_step_time_sec=warmup,
                step_time_sec=measured,
                window_start_ns=starts_ns[max(0, num_warmup - 1)],
                window_end_ns=readings[-1]["ns"],
                losses=(),
                peak_memory_bytes=log.last("memory")["peak_memory_bytes"],
            ),
        ),
        sanity=(),
        window_metrics=tuple(
            map(QualityMetric.model_validate, log.all("window_metric"))
        ),
        readings=Readings(
            evidence=evidence,
            num_readings=len(warmup) + len(measured),
            num_processes=used["num_processes"],
            busy_cores=used["busy_cores"],
            advances=tuple(used.get("advances", ())),
            remarks=(*remarks, *used["remarks"]),
        ),
    )


def judge(
    printed_ns: Sequence[int], num_warmup: int
) -> tuple[int, Evidence, tuple[str, ...]]:
    """Returns how many readings are warm-up, how good the others are, and why."""
    number = len(printed_ns)
    num_left = number - num_warmup
    if num_left < FEWEST_OF_WINDOW:
        what = "1 number" if number == 1 else f"{number} numbers"
        why = (
            f"it printed {what}, and {num_warmup} are warm-up: fewer than"
            f" {FEWEST_OF_WINDOW} are left, so the last one alone counts; print more"
            " often, or give --steps WARMUP+"
        )
        return number - 1, Evidence.LAST, (why,)
    if not printed_ns[-1]:
        return num_warmup, Evidence.ROWS, ()
    num_bunched = sum(
        here == before for before, here in itertools.pairwise(printed_ns[num_warmup:])
    )
    if 2 * num_bunched > num_left:
        why = (
            f"{num_bunched} of {num_left} numbers came in one piece with the one"
            " before, so it is unknown when they came; let the program flush its output"
            " after each line"
        )
        return num_warmup, Evidence.ROWS, (why,)
    return num_warmup, Evidence.WINDOW, ()


class OtherGpus:
    """Looks at the GPUs of this machine that are not those of a trial.

    A program that chooses devices by itself takes them from other trials, and its rate
    is of more devices than its record says. Where the driver names processes by other
    ids, as in some containers, nothing is found.
    """

    def __init__(self, visible: str | None) -> None:
        self.used: set[int] = set()  # on which the program had a context
        self._others: set[int] = set()
        if visible is not None:
            all_gpus, own = gpus.read_gpus(), {*visible.split(",")}
            ours = {gpu.index for gpu in all_gpus if {gpu.cuda_id, gpu.uuid} & own}
            self._others = {gpu.index for gpu in all_gpus} - ours

    def look(self, pids: Collection[int]) -> None:
        """Notes on which of them some processes have a context now."""
        if not self._others:
            return
        with gpus.driver() as nvml:
            for index in self._others - self.used:
                try:
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    users = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                except nvml.NVMLError:
                    continue  # lost, or it does not say who uses it
                if {user.pid for user in users} & {*pids}:
                    self.used.add(index)


_MORE: Final = 1.1
"""Times the cores of a trial: what counting CPU time can be wrong by, and no more."""
_FLOOD: Final = 2**19
"""Bytes per second from which reading the output takes a share of the cores."""


class Trial:
    def __init__(self, spec: TrialSpec, placement: Placement, writer: RankFile) -> None:
        assert spec.program is not None
        self._spec, self._placement, self._writer = spec, placement, writer
        self._program = spec.program
        self._metric = metric = numbers.parse_metric(spec.program.metric)
        self._num_warmup = 0 if spec.program.is_wall else spec.num_warmup_steps
        self._readings: list[Reading] = []
        self._lines = [
            LineReader(metric.pattern, "--metric", metric.quantity, metric.notation)
            for _ in range(2)
            if metric.pattern is not None
        ]
        self._counts = CountReader(spec.program.counts)
        self._other_gpus = OtherGpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._file: MetricFile | None = None
        self._run = Run(self._other_gpus.look)
        self._is_ended = False  # since it had printed enough

    def run(self, folder: Path) -> int:
        spec = self._spec
        self._writer.write(
            "facts",
            num_parameters=0,
            flops_per_example=None,
            example_unit=self._program.unit,
            global_batch_size=spec.global_batch_size,
            num_replicas=spec.num_replicas,
            metric=self._metric.name,
        )
        values = values_of(spec, self._placement, make_output_dir())
        words = program.fill(program.split(self._program.command), values)
        if self._metric.path:
            (path,) = program.fill([self._metric.path], values)
            self._file = MetricFile(self._metric, folder / path)
        period_sec = running.POLL_SEC if self._file is None else POLL_SEC
        output = self._run.output(words, folder, variables_of(os.environ), period_sec)
        with contextlib.closing(output):
            self._is_ended = any(itertools.starmap(self._has_enough, output))
        code = self._run.exit_code
        if code and code < 0 and not self._is_ended:
            if signal_name(-code) == "SIGKILL":
                return end_like(code)  # the harness knows whether memory ran out
            raise CommandError(
                f"the command ended with signal {signal_name(-code)}{self._so_far()}"
            )
        if code and not self._is_ended:
            raise CommandError(f"the command exited with code {code}{self._so_far()}")
        if self._program.is_wall:
            self._take(Reading(time.monotonic_ns(), self._run.duration_sec))
        if self._file is not None:
            self._file.look(time.monotonic_ns())
            any(map(self._take, self._file.read()))  # until there are enough
        self._check_number()
        check_missed(self._lines)
        for count in self._counts.metrics():
            self._writer.write("window_metric", **count)
        self._write_use()
        self._writer.enter(Phase.REPORT)
        self._writer.write("done", ns=time.monotonic_ns())
        return 0

    def _so_far(self) -> str:
        number = len(self._readings)
        after = f" after it had printed {_count(number, 'number')}" if number else ""
        return f"{after}; {self._run.described()}"

    def tail(self) -> str:
        return "\n".join(filter(None, (kept.tail for kept in self._run.kept)))

    def _has_enough(self, stream: int | None, chunk: bytes, ns: int) -> bool:
        """Reads what came; returns whether there are as many numbers as asked for."""
        if stream is None:
            return self._file is not None and self._is_enough(self._file.look(ns))
        self._counts.feed(stream, chunk, ns)
        if not self._lines:
            return False
        return any(map(self._take, self._lines[stream].feed(chunk, ns)))

    def _take(self, reading: Reading) -> bool:
        if len(self._readings) >= MAX_STEPS:
            raise ReadingError(
                f"it printed more than {MAX_STEPS} numbers; print fewer, or end the"
                " program by --steps +MEASURED"
            )
        if not self._readings:
            self._writer.enter(Phase.WARMUP)
        if len(self._readings) == self._num_warmup:
            self._writer.enter(Phase.MEASURE)
        if len(self._readings) >= self._num_warmup:
            check_positive(reading)
        self._readings.append(reading)
        self._writer.write("reading", ns=reading.ns, value=reading.value)
        return self._is_enough(len(self._readings))

    def _is_enough(self, number: int) -> bool:
        wanted = self._spec.num_measured_steps
        return wanted is not None and number >= self._spec.num_warmup_steps + wanted

    def _check_number(self) -> None:
        number, wanted = len(self._readings), self._spec.num_measured_steps
        if not number:
            check_missed(self._lines)
            raise CommandError(
                "the command ended well, and no line that it printed matches"
                f" --metric {self._program.metric!r}; {self._run.described(1)}"
            )
        if wanted is not None and not self._is_enough(number):
            raise CommandError(
                f"the command printed {_count(number, 'number')}, but"
                f" {self._spec.num_warmup_steps} of warm-up and {wanted}"
                " measured ones (--steps) were asked for; ask for fewer"
            )

    def _write_use(self) -> None:
        run = self._run
        self._writer.write(
            "memory",
            peak_memory_bytes=run.peak_bytes,
            method="resident size of all processes, sampled every second",
        )
        num_bytes = sum(kept.num_bytes for kept in run.kept)
        busy_cores = run.cpu_sec / max(run.duration_sec, 1e-9)
        window = self._readings[max(0, self._spec.num_warmup_steps - 1) :]
        self._writer.write(
            "used",
            num_processes=run.num_processes,
            busy_cores=busy_cores,
            advances=advances([each.counters for each in window])[:MAX_ADVANCES],
            remarks=remarks_on(
                num_left=run.num_left,
                bytes_per_sec=num_bytes / max(run.duration_sec, 1.0),
                busy_cores=busy_cores,
                num_cores=len(self._placement.cpusets[0]),
                other_gpus=sorted(self._other_gpus.used),
            ),
        )


def remarks_on(
    *,
    num_left: int,
    bytes_per_sec: float,
    busy_cores: float,
    num_cores: int,
    other_gpus: Sequence[int] = (),
) -> list[str]:
    """Returns what the user of a program should know of a run of it."""
    remarks = []
    if num_left:
        remarks.append(
            f"{_count(num_left, 'process', 'processes')} outlived the command and were"
            " ended; let it wait for what it starts"
        )
    if bytes_per_sec > _FLOOD:
        remarks.append(
            f"it printed {bytes_per_sec / 2**20:.1f} MiB/s, and reading that takes time"
            " from its cores; print less"
        )
    if busy_cores > _MORE * num_cores:
        remarks.append(
            f"it kept {busy_cores:.1f} cores busy and has {_count(num_cores, 'core')};"
            " leave the affinity as it is, and start as many threads as {cores}"
        )
    if other_gpus:
        numbers = ", ".join(map(str, other_gpus))
        remarks.append(
            f"it used {_count(len(other_gpus), 'GPU')} that its trial does not have"
            f" ({numbers}); leave CUDA_VISIBLE_DEVICES as it is, and use {{gpus}}"
        )
    return remarks


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def values_of(
    spec: TrialSpec, placement: Placement, output_dir: Path
) -> dict[str, object]:
    share = min(allocation.replicas_per_worker(spec.variables), spec.num_replicas)
    values = {
        "replicas": spec.num_replicas,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "global_batch_size": spec.global_batch_size,
        "workers": spec.num_replicas // share,
        "replicas_per_worker": share,
        "cores": len(placement.cpusets[0]),
        "gpus": spec.num_replicas if spec.device == "gpu" else 0,
        "port": free_port(),
        "seed": spec.seed,
        "output_dir": output_dir,
    }
    assert values.keys() == program.MEANINGS.keys()
    return values | spec.options


def make_output_dir() -> Path:
    folder = Path(os.environ["TMPDIR"]) / "output"
    folder.mkdir()
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables_of(own: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """Returns the environment of the program: the user's, without our packages."""
    variables = dict(own)
    _, _, rest = variables.pop("PYTHONPATH", "").partition(os.pathsep)
    if rest:
        variables["PYTHONPATH"] = rest
    return variables


def main(argv: Sequence[str]) -> int:
    folder, trial_dir = Path(argv[0]), Path(argv[1])
    spec = TrialSpec.model_validate_json((trial_dir / "spec.json").read_bytes())
    env = Environment.model_validate_json((trial_dir / "env.json").read_bytes())
    os.sched_setaffinity(0, env.placement.cpusets[0])
    assert spec.program is not None
    try:
        if not spec.is_client:
            return record(spec, env.placement, folder, trial_dir)
        values = values_of(spec, env.placement, make_output_dir())
        words = program.fill(program.split(spec.program.command), values)
        return running.run_supervised(
            words, folder, variables_of(os.environ), trial_dir
        )
    except LostHarnessError:
        process_tree.kill_tree(os.environ[process_tree.MARKER])
        return 1


def record(spec: TrialSpec, placement: Placement, folder: Path, trial_dir: Path) -> int:
    writer = RankFile(rank_path(trial_dir, 0), time.monotonic_ns)
    trial = Trial(spec, placement, writer)
    try:
        return trial.run(folder)
    except LostHarnessError:
        raise
    except Exception as error:  # noqa: BLE001 - recorded, whatever it is
        detail = None
        if isinstance(error, (CommandError, ReadingError)):
            parts = getattr(error, "detail", ""), trial.tail()
            detail = "\n".join(filter(None, parts))
        writer.fail(error, detail)
        return 1
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
