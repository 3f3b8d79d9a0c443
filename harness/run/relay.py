"""A relay: the processes of all cases of a generation take turns, round after round.

Noise of a shared machine lasts for seconds. Cases that are measured within the same
second see the same noise, so their ratio does not; cases measured a minute apart do
not (``docs/measuring.md``, ``docs/decisions/0022-relay.md``). In one generation:

1. Each case starts a fresh process, as many at a time as there are cores
   (``harness/run/starting.py``). Each runs its last warm-up step alone: it tells how
   many steps make a turn.
2. In every round each case has one turn, in an order shuffled by the seed: one step
   or more, at least ``MIN_TURN_SEC``. A turn that others disturbed is void, and is
   repeated up to twice.
3. All check, record and exit.

Whatever happens to one trial does not end the generation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import time
from typing import TYPE_CHECKING, Final

from harness.machine import core_clock, disturbance
from harness.machine.free_memory import read_free_memory
from harness.machine.gpu_watch import GpuWatch
from harness.run import starting, trial_runner, turn_file
from harness.run.resident import Resident, ResidentEndedError, latest, total
from harness.trial import heap
from harness.trial.steps import whole_blocks
from results.records.measuring import MAX_ATTEMPTS, Control, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.run.trial_runner import RunSettings, VoidReason
    from results.records.models import PlannedTrial, StatusRecord
    from results.store.study_store import Store

    # Receives what the relay does now, and the seconds to the generation's end.
    Stage = Callable[[str, float | None], None]

MIN_TURN_SEC: Final = 0.3
"""Shortest turn: below it, the kernel's ticks of 10 ms say too little about others."""
MIN_ROUNDS: Final = 5
"""Rounds of a generation, however little time is left for them."""
MIN_STEP_SEC: Final = 1e-4
"""Shortest step of a program with a client: recording one takes a few microseconds."""
_OF_FREE_MEMORY: Final = 0.5
"""How much of the free memory heaps may be given, all together."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One generation of a relay.

    Attributes:
      trials: Its trials, one per case.
      index: Its index, from 0.
      duration_sec: The time for all of it; None for no limit.
      max_rounds: The most rounds.
      seed: Determines the order of the turns.
    """

    trials: Sequence[PlannedTrial]
    index: int
    duration_sec: float | None
    max_rounds: int
    seed: int


def run_generation(
    store: Store,
    generation: Generation,
    settings: RunSettings,
    stage: Stage,
    free_memory: Callable[[], int] = read_free_memory,
) -> list[StatusRecord]:
    """Runs the trials of a generation in turns, and records all of them.

    Args:
      store: The study.
      generation: What to run.
      settings: How to run it.
      stage: Receives what happens now.
      free_memory: Returns the bytes that are free now.

    Returns:
      The status of each trial, in planned order.

    Raises:
      DoesNotFitError: The processes do not fit into memory at once; nothing of this
        generation is recorded.
      Interrupted: By a signal; all processes are killed, no status is written.
    """
    start_sec = time.monotonic()
    deadline = None
    if generation.duration_sec is not None:
        deadline = start_sec + generation.duration_sec
    with _residents(store, generation, settings) as residents:
        starting.start_side_by_side(
            residents,
            lambda resident, number: stage(
                f"starting {_name(resident)} ({number} of {len(residents)})", None
            ),
            free_memory,
        )
        _warm_up(residents, stage, free_memory)
        _take_rounds(residents, generation, deadline, stage, settings.void_reason)
        stage("checking and recording", None)
        _finish(residents)
        return [_record(store, resident, settings) for resident in residents]


@contextlib.contextmanager
def _residents(
    store: Store, generation: Generation, settings: RunSettings
) -> Iterator[list[Resident]]:
    """Prepares all trials; kills every process at the end, however the block ends."""
    residents: list[Resident] = []
    try:
        for trial in generation.trials:
            prepared = trial_runner.prepare(store, trial, settings)
            residents.append(
                Resident(
                    prepared,
                    timeout_sec=settings.timeout_sec,
                    end_elsewhere=settings.launcher.end,
                )
            )
        yield residents
    finally:
        for resident in residents:
            resident.kill()


def _name(resident: Resident) -> str:
    spec = resident.prepared.trial.spec
    control = "" if spec.control is Control.NONE else f" ({spec.control.value})"
    revision = f" of {spec.revision}" if spec.revision else ""
    return f"{spec.backend} x{spec.num_replicas}{control}{revision}"


def _warm_up(
    residents: Sequence[Resident], stage: Stage, free_memory: Callable[[], int]
) -> None:
    """Lets one after the other run its last warm-up step, alone."""
    fraction = _heap_fraction(residents, free_memory())
    less = (
        f"; heaps grow by {fraction:.0%}, not {heap.FRACTION:.0%}: little memory left"
    )
    stage("warming up" + less * (fraction < heap.FRACTION), None)
    for resident in residents:
        if not resident.is_alive:
            continue
        started = time.monotonic()
        resident.send("warm_up", heap_fraction=fraction)
        with contextlib.suppress(ResidentEndedError):
            answers = resident.receive("ready")
            resident.step_time_sec = max(a["step_time_sec"] for a in answers)
            _check_resolution(resident, resident.step_time_sec)
        resident.busy_sec += time.monotonic() - started


def _check_resolution(resident: Resident, step_sec: float) -> None:
    """Ends a trial whose steps are too short to be timed one by one.

    Raises:
      ResidentEndedError: They are.
    """
    if resident.prepared.is_client and step_sec < MIN_STEP_SEC:
        resident.fail(
            f"a step took {1e6 * step_sec:.0f} us, less than the {1e6 * MIN_STEP_SEC:g}"
            " us that can be timed: wait for the device before step.done(), or do more"
            " work per step, and give the examples of all of it",
            0,
        )


def _heap_fraction(residents: Sequence[Resident], free: int) -> float:
    """Returns how much each process adds to its heap: the same for all, and it fits."""
    used = sum(resident.resident_bytes() for resident in residents)
    return min(heap.FRACTION, _OF_FREE_MEMORY * free / max(used, 1))


def _take_rounds(
    residents: Sequence[Resident],
    generation: Generation,
    deadline: float | None,
    stage: Stage,
    void_reason: VoidReason,
) -> None:
    generator = random.Random(f"{generation.seed}/{generation.index}")  # noqa: S311
    longest_round_sec = 0.0
    for round_index in range(generation.max_rounds):
        alive = [resident for resident in residents if resident.is_alive]
        now = time.monotonic()
        left = None if deadline is None else deadline - now
        if not alive or (
            left is not None and round_index >= MIN_ROUNDS and left < longest_round_sec
        ):
            return
        expected = (generation.max_rounds - round_index) * longest_round_sec
        if left is not None:
            expected = min(expected, left) if longest_round_sec else left
        stage(f"round {round_index + 1}", max(expected, 0.0))
        generator.shuffle(alive)
        for resident in alive:
            started = time.monotonic()
            _take_turn(resident, round_index, void_reason)
            resident.busy_sec += time.monotonic() - started
        longest_round_sec = max(longest_round_sec, time.monotonic() - now)


def _take_turn(resident: Resident, round_index: int, void_reason: VoidReason) -> None:
    """Gives one turn, and repeats it while it is void."""
    num_steps = max(1, math.ceil(MIN_TURN_SEC / max(resident.step_time_sec, 1e-6)))
    num_steps = whole_blocks(num_steps, resident.prepared.trial.spec)
    for attempt in range(MAX_ATTEMPTS):
        pids = [process.pid for process in resident.processes()]
        with GpuWatch(resident.prepared.gpus) as watch:
            before = core_clock.read(resident.cores, pids)
            resident.send(
                "turn", round_index=round_index, attempt=attempt, num_steps=num_steps
            )
            try:
                answers = resident.receive("turn")
                turn_ns = latest(answers, "end_ns") - latest(answers, "start_ns")
                _check_resolution(resident, turn_ns / num_steps / 1e9)
            except ResidentEndedError:
                return
            after = core_clock.read(resident.cores, pids)
        load = disturbance.between(before, after)
        load = dataclasses.replace(load, gpus=watch.uses())
        turn_file.append(resident.prepared.trial_dir, round_index, attempt, load)
        num_retraces = int(total(answers, "num_retraces"))
        turn = Turn(
            round_index=round_index,
            attempt=attempt,
            start_ns=latest(answers, "start_ns"),
            end_ns=latest(answers, "end_ns"),
            num_steps=num_steps,
            foreign_cpu_fraction=load.foreign_cpu_fraction,
            stolen_cpu_fraction=load.stolen_cpu_fraction,
            run_delay_sec=load.run_delay_sec,
            user_sec=total(answers, "user_sec"),
            system_sec=total(answers, "system_sec"),
            minor_faults=int(total(answers, "minor_faults")),
            major_faults=int(total(answers, "major_faults")),
            involuntary_switches=int(total(answers, "involuntary_switches")),
            num_throttled=load.num_throttled,
            num_retraces=num_retraces,
            gpus=load.gpus,
            void_reason=void_reason(load, num_retraces),
        )
        resident.turns.append(turn)
        if turn.is_valid:
            return


def _finish(residents: Sequence[Resident]) -> None:
    """Lets all check and record side by side; nothing is timed any more."""
    alive = [resident for resident in residents if resident.is_alive]
    started = time.monotonic()
    for resident in alive:
        resident.send("finish")
    for resident in alive:
        resident.wait()
    for resident in alive:
        resident.busy_sec += (time.monotonic() - started) / len(alive)


def _record(store: Store, resident: Resident, settings: RunSettings) -> StatusRecord:
    assert resident.exit is not None
    valid = [turn for turn in resident.turns if turn.is_valid]
    return trial_runner.record(
        store,
        resident.prepared,
        resident.exit,
        settings,
        disturbance={
            name: _mean_over_time(valid or resident.turns, name)
            for name in ("foreign_cpu_fraction", "stolen_cpu_fraction")
        },
        turns=resident.turns,
        duration_sec=resident.busy_sec,
    )


def _mean_over_time(turns: Sequence[Turn], name: str) -> float | None:
    """Returns a fraction of the time of all turns; None where it was not read."""
    known = [turn for turn in turns if getattr(turn, name) is not None]
    if not known:
        return None
    duration_sec = sum(turn.time_sec for turn in known)
    return float(sum(getattr(t, name) * t.time_sec for t in known) / duration_sec)
