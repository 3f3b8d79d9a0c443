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
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.client.scaling_client import ClientError, LostHarnessError, RankFile
from harness.command import numbers, peers, program, reader, running
from harness.command.running import CommandError, Run
from harness.machine import allocation
from harness.machine.gpu_watch import OtherGpus
from harness.trial import process_tree
from harness.trial.rank_file import RankLog, end_like, one_line, rank_path, signal_name
from replicator.cluster.local_cluster import free_ports
from results.records import models
from results.records.program import FEWEST_OF_WINDOW, MAX_ADVANCES
from results.records.record_base import MAX_STEPS

# A number stands for the time of a global batch at the rate that it says, and the
# window of a trial is the sum of these times after warm-up: its throughput is the
# harmonic mean of the rates, that of a program which prints after equal numbers of
# steps.


def make_result(
    trial_id: str, spec: models.TrialSpec, log: RankLog
) -> models.TrialResult:
    own = spec.program
    assert own is not None
    readings, used = log.all("reading"), log.last("used")
    if not readings:
        raise ValueError("the command printed no number")
    metric = numbers.parse_metric(own.metric)
    starts_ns = [reading["ns"] for reading in readings]
    num_warmup, evidence, remarks = judge(starts_ns, spec.num_warmup_steps)
    if own.is_wall:
        num_warmup, evidence, remarks = 0, models.Evidence.WINDOW, ()
        starts_ns = [readings[0]["ns"] - round(readings[0]["value"] * 1e9)]
    sizes = spec.global_batch_size, spec.num_replicas
    warmup, measured = (
        # A rate of 0 is none yet.
        tuple(metric.seconds(one["value"], *sizes) for one in part if one["value"])
        for part in (readings[:num_warmup], readings[num_warmup:])
    )
    if not measured:
        raise ValueError("the command printed no number above 0")
    rank = models.RankTimes(
        rank=0,
        time_to_first_step_sec=0.0,
        warmup_step_time_sec=warmup,
        step_time_sec=measured,
        window_start_ns=starts_ns[max(0, num_warmup - 1)],
        window_end_ns=readings[-1]["ns"],
        losses=(),
        peak_memory_bytes=log.last("memory")["peak_memory_bytes"],
    )
    counts = map(models.QualityMetric.model_validate, log.all("window_metric"))
    return models.TrialResult(
        trial_id=trial_id,
        example_unit=own.unit,
        num_parameters=0,
        global_batch_size=spec.global_batch_size,
        num_measured_steps=len(measured),
        window_sec=math.fsum(measured),
        ranks=(rank,),
        sanity=(),
        window_metrics=tuple(counts),
        readings=models.Readings(
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
) -> tuple[int, models.Evidence, tuple[str, ...]]:
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
        return number - 1, models.Evidence.LAST, (why,)
    if not printed_ns[-1]:
        return num_warmup, models.Evidence.ROWS, ()
    num_bunched = sum(
        here == before for before, here in itertools.pairwise(printed_ns[num_warmup:])
    )
    if 2 * num_bunched > num_left:
        why = (
            f"{num_bunched} of {num_left} numbers came in one piece with the one"
            " before, so it is unknown when they came; let the program flush its output"
            " after each line"
        )
        return num_warmup, models.Evidence.ROWS, (why,)
    return num_warmup, models.Evidence.WINDOW, ()


class Trial:
    def __init__(
        self, spec: models.TrialSpec, placement: models.Placement, writer: RankFile
    ) -> None:
        assert spec.program is not None
        self._spec, self._placement, self._writer = spec, placement, writer
        self._program = spec.program
        self._metric = numbers.parse_metric(spec.program.metric)
        self._readings: list[reader.Reading] = []
        self._output = reader.OutputReader(spec.program)
        self._other_gpus = OtherGpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._file: reader.MetricFile | None = None
        self._run = Run(self._other_gpus.look)

    def run(self, folder: Path) -> None:
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
        values = values_of(spec, self._placement)
        words = program.fill(program.split(self._program.command), values)
        if self._metric.path:
            (path,) = program.fill([self._metric.path], values)
            self._file = reader.MetricFile(self._program, folder / path)
        period_sec = running.POLL_SEC if self._file is None else reader.POLL_SEC
        output = self._run.output(words, folder, variables_of(os.environ), period_sec)
        with contextlib.closing(output):
            is_enough = any(itertools.starmap(self._has_enough, output))
        if not is_enough:
            self._check_exit(self._run.exit_code or 0)
        if self._program.is_wall:
            self._take(reader.Reading(time.monotonic_ns(), self._run.duration_sec))
        if self._file is not None:
            self._file.look(time.monotonic_ns())
            any(map(self._take, self._file.read()))  # until there are enough
        self._check_number()
        self._output.check_missed()
        for count in self._output.counts():
            self._writer.write("window_metric", **count)
        self._write_use()
        self._writer.enter(models.Phase.REPORT)
        self._writer.write("done", ns=time.monotonic_ns())

    def _check_exit(self, code: int) -> None:
        if not code:
            return
        if code == -signal.SIGKILL:
            end_like(code)  # the harness knows whether memory ran out
        how = f"exited with code {code}"
        if code < 0:
            how = f"ended with signal {signal_name(-code)}"
        number = len(self._readings)
        after = (
            f" after it had printed {running.count(number, 'number')}" if number else ""
        )
        raise CommandError(f"the command {how}{after}; {self._run.described()}")

    def tail(self) -> str:
        return "\n".join(filter(None, (kept.tail for kept in self._run.kept)))

    def _has_enough(self, stream: int | None, chunk: bytes, ns: int) -> bool:
        """Reads what came; returns whether there are as many numbers as asked for."""
        if stream is None:
            return self._file is not None and self._is_enough(self._file.look(ns))
        return any(map(self._take, self._output.feed(stream, chunk, ns)))

    def _take(self, reading: reader.Reading) -> bool:
        number = len(self._readings)
        num_warmup = 0 if self._program.is_wall else self._spec.num_warmup_steps
        if number >= MAX_STEPS:
            raise reader.ReadingError(
                f"it printed more than {MAX_STEPS} numbers; print fewer, or end the"
                " program by --steps +MEASURED"
            )
        if not number:
            self._writer.enter(models.Phase.WARMUP)
        if number == num_warmup:
            self._writer.enter(models.Phase.MEASURE)
        if number >= num_warmup:
            reading.check_positive()
        self._readings.append(reading)
        self._writer.write("reading", ns=reading.ns, value=reading.value)
        return self._is_enough(number + 1)

    def _is_enough(self, number: int) -> bool:
        wanted = self._spec.num_measured_steps
        return wanted is not None and number >= self._spec.num_warmup_steps + wanted

    def _check_number(self) -> None:
        number, wanted = len(self._readings), self._spec.num_measured_steps
        if not number:
            self._output.check_missed()
            raise CommandError(
                "the command ended well, and no line that it printed matches"
                f" --metric {self._program.metric!r}; {self._run.described(1)}"
            )
        if wanted is not None and not self._is_enough(number):
            raise CommandError(
                f"the command printed {running.count(number, 'number')}, but"
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
        window = self._readings[max(0, self._spec.num_warmup_steps - 1) :]
        self._writer.write(
            "used",
            num_processes=run.num_processes,
            busy_cores=run.busy_cores,
            advances=reader.advances([each.counters for each in window])[:MAX_ADVANCES],
            remarks=run.remarks(len(self._placement.cpusets[0]), self._other_gpus.used),
        )


def values_of(spec: models.TrialSpec, placement: models.Placement) -> dict[str, object]:
    """Returns the values of the placeholders; makes the folder that one is."""
    output_dir = Path(os.environ["TMPDIR"]) / "output"
    output_dir.mkdir()
    share = min(allocation.replicas_per_worker(spec.variables), spec.num_replicas)
    values = {
        "replicas": spec.num_replicas,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "global_batch_size": spec.global_batch_size,
        "workers": spec.num_replicas // share,
        "replicas_per_worker": share,
        "cores": len(placement.cpusets[0]),
        "gpus": spec.num_replicas if spec.device == "gpu" else 0,
        "port": free_ports(1)[0],
        "seed": spec.seed,
        "output_dir": output_dir,
    }
    assert values.keys() == program.MEANINGS.keys()
    return values | spec.options


def variables_of(own: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the program: the user's, without our packages."""
    variables = dict(own)
    _, _, rest = variables.pop("PYTHONPATH", "").partition(os.pathsep)
    return variables | ({"PYTHONPATH": rest} if rest else {})


def record(
    spec: models.TrialSpec, placement: models.Placement, folder: Path, trial_dir: Path
) -> int:
    """Runs a program that prints its numbers."""
    writer = RankFile(rank_path(trial_dir, 0), time.monotonic_ns)
    trial = Trial(spec, placement, writer)
    try:
        trial.run(folder)
    except LostHarnessError:
        raise
    except Exception as error:  # noqa: BLE001 - recorded, whatever it is
        detail = None
        if isinstance(error, (CommandError, reader.ReadingError)):
            parts = getattr(error, "detail", ""), trial.tail()
            detail = "\n".join(filter(None, parts))
        writer.fail(error, detail)
        return 1
    finally:
        writer.close()
    return 0


def supervise(
    spec: models.TrialSpec, placement: models.Placement, folder: Path, trial_dir: Path
) -> int:
    """Runs a program whose processes connect, and write their own rank files.

    This process keeps what they print, ends what outlives the program, and says what is
    wrong where none has connected.
    """
    assert spec.program is not None
    words = program.fill(
        program.split(spec.program.command), values_of(spec, placement)
    )
    # Its processes say themselves what they use; looking through all processes every
    # second would take from the blocks of other trials.
    run, why = Run(), ""
    try:
        for _ in run.output(words, folder, variables_of(os.environ)):
            pass
    except CommandError as error:
        why = str(error)
    code = run.exit_code
    if rank_path(trial_dir, 0).exists():
        peers.check_losses(trial_dir, spec)
        return 1 if code is None else end_like(code)
    if not why and code:
        why = f"the command exited with code {code}, before it had connected; "
        why += run.described()
    elif not why:
        why = (
            "the command ended well, and no process of it had connected: call"
            " scaling_client.connect() in it, or give --metric NAME=PATTERN for what it"
            f" prints; {run.described()}"
        )
    file = RankFile(rank_path(trial_dir, 0), time.monotonic_ns)
    file.fail(ClientError(one_line(why)))
    file.close()
    return 1


def main(argv: Sequence[str]) -> int:
    folder, trial_dir = Path(argv[0]), Path(argv[1])
    spec = models.TrialSpec.model_validate_json((trial_dir / "spec.json").read_bytes())
    env = models.Environment.model_validate_json((trial_dir / "env.json").read_bytes())
    os.sched_setaffinity(0, env.placement.cpusets[0])
    run = supervise if spec.is_client else record
    try:
        return run(spec, env.placement, folder, trial_dir)
    except LostHarnessError:
        process_tree.kill_tree(os.environ[process_tree.MARKER])
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
