"""The result record of a program of the user's, from the numbers that it printed.

A number stands for the time of a global batch at the rate that it says, and the window
of a trial is the sum of these times after warm-up: its throughput is the harmonic mean
of the rates, that of a program which prints after equal numbers of steps.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from harness.command import numbers
from harness.machine import gpus
from results.records.models import (
    Evidence,
    QualityMetric,
    RankTimes,
    Readings,
    TrialResult,
)
from results.records.program import FEWEST_OF_WINDOW

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from harness.trial.rank_file import RankLog
    from results.records.models import TrialSpec


def make_result(trial_id: str, spec: TrialSpec, log: RankLog) -> TrialResult:
    """Returns the result record of a program that has printed a number."""
    assert spec.program is not None
    if not log.readings:
        raise ValueError("the command printed no number")
    of = numbers.parse_metric(spec.program.metric)
    num_warmup, evidence, remarks = judge(
        [reading["ns"] for reading in log.readings], spec.num_warmup_steps
    )
    warmup, measured = (
        tuple(
            of.seconds(reading["value"], spec.global_batch_size, spec.num_replicas)
            for reading in part
            if reading["value"]  # a rate of 0 is none yet
        )
        for part in (log.readings[:num_warmup], log.readings[num_warmup:])
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
                window_start_ns=log.readings[max(0, num_warmup - 1)]["ns"],
                window_end_ns=log.readings[-1]["ns"],
                losses=(),
                peak_memory_bytes=log.memory["peak_memory_bytes"],
            ),
        ),
        sanity=(),
        window_metrics=tuple(map(QualityMetric.model_validate, log.window_metrics)),
        readings=Readings(
            evidence=evidence,
            num_readings=len(warmup) + len(measured),
            num_processes=log.used["num_processes"],
            busy_cores=log.used["busy_cores"],
            advances=tuple(log.used.get("advances", ())),
            remarks=(*remarks, *log.used["remarks"]),
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
            " often, or give --num-warmup-steps"
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
            " before, so nobody knows when they came; let the program flush its output"
            " after each line"
        )
        return num_warmup, Evidence.ROWS, (why,)
    return num_warmup, Evidence.WINDOW, ()


VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class OtherGpus:
    """Looks at the GPUs of this machine that are not those of a trial.

    A program that chooses devices by itself takes them from other trials, and its rate
    is that of more devices than its record says. Where the driver names processes by
    other ids, as in some containers, nothing is found.

    Attributes:
      used: Numbers of those that the program had a context on.
    """

    def __init__(self, visible: str | None) -> None:
        """Reads which there are."""
        self.used: set[int] = set()
        self._others: set[int] = set()
        if visible is not None:
            found, own = gpus.read_gpus(), {*visible.split(",")}
            ours = {gpu.index for gpu in found if {gpu.cuda_id, gpu.uuid} & own}
            self._others = {gpu.index for gpu in found} - ours

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
