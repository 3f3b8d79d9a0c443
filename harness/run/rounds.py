"""The rounds of a generation: which resident has a turn when, and for how long.

The residents of one case (both revisions, and the twin) follow each other, since what
is divided should lie close together. In a gate, sustained stretches follow the rounds.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from typing import TYPE_CHECKING, Final

from harness.machine import disturbance, machine_state
from harness.machine.gpu_watch import GpuWatch
from harness.run.resident import Resident, ResidentEndedError, latest, total
from harness.trial import rank_file
from harness.trial.steps import whole_blocks
from results.errors import WriteStoreError
from results.records.measuring import MAX_ATTEMPTS, Control, Order, Turn
from results.store import atomic, untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.machine.disturbance import Disturbance
    from harness.run.trial_runner import VoidReason
    from results.records.measuring import Measuring
    from results.records.models import PlannedTrial, TrialSpec
    from results.store.study_store import Trial

    Stage = Callable[[str, float | None], None]


# The trial's own processes cannot see what others do to its cores, so the harness
# writes these lines, between turns. ``result.json`` is made from them and the rank
# files, and ``verify`` compares it with both.

TURNS_NAME = "turns.jsonl"
_LOAD: Final = (
    *("foreign_cpu_fraction", "foreign_resolution", "num_cores", "one_core_resolution"),
    *("stolen_cpu_fraction", "stolen_resolution", "run_delay_sec", "num_throttled"),
)


def last_turn(trial_dir: Path) -> tuple[int, bool] | None:
    """Returns round and kind of the last whole turn, to show where a relay is.

    None where there is none yet, or the line is none: ``verify`` says what is damaged.
    """
    try:
        text = untrusted.read_text(trial_dir / TURNS_NAME) or ""
        turn = untrusted.parsed(text.rpartition("\n")[0].splitlines()[-1])
        return int(turn["round_index"]), bool(turn.get("is_sustained"))
    except rank_file.MALFORMED:
        return None


def append(
    trial_dir: Path,
    round_index: int,
    attempt: int,
    load: Disturbance,
    *,
    is_sustained: bool = False,
) -> None:
    """Appends one turn."""
    line: dict[str, object] = {
        "round_index": round_index,
        "attempt": attempt,
        **{name: getattr(load, name) for name in _LOAD},
    }
    if is_sustained:
        line["is_sustained"] = True
    if load.gpus:
        line["gpus"] = [use.model_dump(mode="json") for use in load.gpus]
    path = trial_dir / TURNS_NAME
    try:
        atomic.check_fence(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:  # of a write, which names no path
        raise WriteStoreError(
            f"cannot write {str(path)!r}: {error.strerror}; free space there, then run"
            " the same command again"
        ) from error


MIN_TURN_SEC: Final = 0.3
"""Shortest turn: below it, the kernel's ticks of 10 ms say too little about others."""
MIN_ROUNDS: Final = 5
"""Rounds of a generation, however little time is left for them."""
MIN_STEP_SEC: Final = 1e-4
"""Shortest step of a program with a client: recording one takes a few microseconds."""
SUSTAINED_SEC: Final = 2.0
"""Shortest stretch of a gate."""
SUSTAINED_STEPS: Final = 13
"""Fewest steps of one: four stretches see a step in fifty about once."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One generation of a relay."""

    trials: Sequence[PlannedTrial]  # Its trials, one per case.
    index: int  # Its index, from 0.
    duration_sec: float | None  # The time for all of it; None for no limit.
    max_rounds: int  # The most rounds.
    seed: int  # Determines the order of the turns.
    num_stretches: int = 0  # Sustained ones of each case, after the rounds.
    # Steps of each turn by case, as earlier generations had them; cases that are not in
    # it get theirs from their last warm-up steps.
    steps_of_turn: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # Called before the first turn.
    on_warm: Callable[[Sequence[Resident]], None] = lambda _: None


def steps_of_turns(trials: Iterable[Trial]) -> dict[str, int]:
    """Returns the steps of a turn by case, of the first generation that has any."""
    found: dict[str, int] = {}
    for trial in sorted(trials, key=lambda trial: trial.spec.repetition_index):
        turns = () if trial.result is None else trial.result.turns
        for turn in turns:
            if not turn.is_sustained:
                found.setdefault(case_of(trial.spec), turn.num_steps)
                break
    return found


def check_resolution(resident: Resident, step_sec: float) -> None:
    """Ends a trial whose steps are too short to be timed one by one."""
    if resident.prepared.is_client and step_sec < MIN_STEP_SEC:
        resident.fail(
            f"a step took {1e6 * step_sec:.0f} us, less than the {1e6 * MIN_STEP_SEC:g}"
            f" us that can be timed: wait for the device before step.done(), or do more"
            " work per step, and give the examples of all of it",
            0,
        )


def take_all(
    residents: Sequence[Resident],
    generation: Generation,
    deadline: float | None,
    stage: Stage,
    void_reason: VoidReason,
) -> None:
    """Takes all rounds, and then all sustained stretches."""
    # One that has ended had no warm step: its 0 s would ask for 300,000 steps a turn.
    waiting = [resident for resident in residents if resident.is_alive]
    stretches = _stretches(waiting, generation)
    if deadline is not None:
        deadline -= generation.num_stretches * sum(of.sec for of in stretches)
    _take_rounds(waiting, generation, deadline, stage, void_reason)
    _take_stretches(stretches, generation, stage, void_reason)


def _take_rounds(
    residents: Sequence[Resident],
    generation: Generation,
    deadline: float | None,
    stage: Stage,
    void_reason: VoidReason,
) -> None:
    generator = random.Random(f"{generation.seed}/{generation.index}")  # noqa: S311
    longest_round_sec = 0.0
    numbers = _steps_of_turns(residents, generation.steps_of_turn)
    for round_index in range(generation.max_rounds):
        alive = [resident for resident in residents if resident.is_alive]
        now = time.monotonic()
        left = None if deadline is None else deadline - now
        if not alive:
            return
        if round_index >= MIN_ROUNDS and (
            _is_one_sided(alive, generation)
            or (left is not None and left < longest_round_sec)
        ):
            return
        expected = (generation.max_rounds - round_index) * longest_round_sec
        if left is not None:
            expected = min(expected, left) if longest_round_sec else left
        stage(f"round {round_index + 1}", max(expected, 0.0))
        for resident in _in_order(alive, generator):
            number = numbers[_case_of(resident)]
            _take_turn(resident, round_index, number, void_reason)
        longest_round_sec = max(longest_round_sec, time.monotonic() - now)


def _is_one_sided(alive: Sequence[Resident], generation: Generation) -> bool:
    """Whether all of one of two revisions have ended: nothing is left to compare."""
    left = {resident.prepared.trial.spec.revision for resident in alive}
    return left != {trial.spec.revision for trial in generation.trials}


def _in_order(
    residents: Sequence[Resident], generator: random.Random
) -> Iterator[Resident]:
    """Yields residents in random order, those of one case after one another."""
    shuffled = list(_by_case(residents).values())
    generator.shuffle(shuffled)
    for group in shuffled:
        generator.shuffle(group)
        yield from group


def case_of(spec: TrialSpec) -> str:
    """Returns what generations and revisions of a case, and its twin, share."""
    control = Control.NONE if spec.control is Control.TWIN else spec.control
    apart = {"revision", "code_digest", "control", "repetition_index", "seed"}
    return f"{control.value} {spec.model_dump_json(exclude=apart)}"


def _case_of(resident: Resident) -> str:
    return case_of(resident.prepared.trial.spec)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Stretch:
    """A sustained stretch of both revisions of a case: as many steps of each.

    The garbage collector works in it if both let it work.
    """

    residents: tuple[Resident, ...]
    num_steps: int
    sec: float
    is_collecting: bool


def _stretches(residents: Sequence[Resident], generation: Generation) -> list[_Stretch]:
    if not generation.num_stretches:
        return []
    groups = _by_case(
        resident
        for resident in residents
        if resident.prepared.trial.spec.control is Control.NONE
    )
    found = []
    for group in groups.values():
        step_sec = max(1e-6, *(of.step_time_sec for of in group))
        spec = group[0].prepared.trial.spec
        number = max(SUSTAINED_STEPS, math.ceil(SUSTAINED_SEC / step_sec))
        number = whole_blocks(number, spec)
        found.append(
            _Stretch(
                residents=tuple(group),
                num_steps=number,
                sec=number * step_sec * len(group),
                is_collecting=all(of.has_sustained for of in group),
            )
        )
    return found


def _take_stretches(
    stretches: Sequence[_Stretch],
    generation: Generation,
    stage: Stage,
    void_reason: VoidReason,
) -> None:
    """Gives every case its sustained stretches; their rounds follow all others."""
    seed = f"{generation.seed}/{generation.index}/sustained"
    generator = random.Random(seed)  # noqa: S311
    for index in range(generation.num_stretches):
        left_sec = (generation.num_stretches - index) * sum(of.sec for of in stretches)
        stage(f"sustained {index + 1} of {generation.num_stretches}", left_sec)
        for stretch in generator.sample(list(stretches), len(stretches)):
            both = [resident for resident in stretch.residents if resident.is_alive]
            for resident in generator.sample(both, len(both)):
                _take_turn(
                    resident,
                    generation.max_rounds + index,
                    stretch.num_steps,
                    void_reason,
                    stretch,
                )


def _steps_of_turns(
    residents: Sequence[Resident], known: Mapping[str, int]
) -> dict[str, int]:
    """Returns the steps of a turn by case; of the fastest of its residents.

    Turns of unlike numbers of steps would not be compared alone for what they measure:
    the first step of a turn can take longer than the others.
    """
    found = dict(known)
    for name, group in _by_case(residents).items():
        if name not in known:
            step_sec = min(max(of.step_time_sec, 1e-6) for of in group)
            number = max(1, math.ceil(MIN_TURN_SEC / step_sec))
            found[name] = whole_blocks(number, group[0].prepared.trial.spec)
    return found


def _by_case(residents: Iterable[Resident]) -> dict[str, list[Resident]]:
    groups: dict[str, list[Resident]] = {}
    for resident in residents:
        groups.setdefault(_case_of(resident), []).append(resident)
    return groups


def _take_turn(
    resident: Resident,
    round_index: int,
    num_steps: int,
    void_reason: VoidReason,
    stretch: _Stretch | None = None,
) -> None:
    """Gives one turn, and repeats it while it is void."""
    started = time.monotonic()
    try:
        _attempt_turn(resident, round_index, num_steps, void_reason, stretch)
    finally:
        resident.busy_sec += time.monotonic() - started


def _attempt_turn(
    resident: Resident,
    round_index: int,
    num_steps: int,
    void_reason: VoidReason,
    stretch: _Stretch | None = None,
) -> None:
    # A program that does not offer it never sees the field.
    more = {"is_sustained": True} if stretch and stretch.is_collecting else {}
    for attempt in range(MAX_ATTEMPTS):
        pids = [process.pid for process in resident.processes()]
        with GpuWatch(resident.prepared.gpus) as watch:
            before = machine_state.read_core_clock(resident.cores, pids)
            resident.send(
                "turn",
                round_index=round_index,
                attempt=attempt,
                num_steps=num_steps,
                **more,
            )
            try:
                answers = resident.receive("turn")
                turn_ns = latest(answers, "end_ns") - latest(answers, "start_ns")
                check_resolution(resident, turn_ns / num_steps / 1e9)
            except ResidentEndedError:
                return
            after = machine_state.read_core_clock(resident.cores, pids)
        load = disturbance.between(before, after)
        load = dataclasses.replace(load, gpus=watch.uses())
        append(
            resident.prepared.trial_dir,
            round_index,
            attempt,
            load,
            is_sustained=stretch is not None,
        )
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
            is_sustained=stretch is not None,
        )
        resident.turns.append(turn)
        if turn.is_valid:
            return


def relay_sec(trials: Iterable[Trial]) -> float:
    """Returns the time that the finished trials of a relay took, all together."""
    return sum(
        trial.status.duration_sec
        for trial in trials
        if trial.spec.order is Order.RELAY and trial.status is not None
    )


class RelayTimeLeft:
    """The time to the end of a relay, while one of its generations runs."""

    def __init__(
        self,
        measuring: Measuring,
        index: int,
        *,
        num_later: int,
        used_sec: float,
        whole_sec: float,
        is_measured: bool,
    ) -> None:
        """Creates it."""
        looks = () if measuring.gate is None else measuring.gate.looks
        self.is_most = bool(looks) or measuring.target is not None
        self._limit_sec: float | None = None
        if self.is_most and measuring.minutes is not None:
            self._limit_sec = measuring.minutes * 60 - used_sec
        if looks:
            num_later = max(num_later, looks[-1] - index - 1)
        elif self.is_most:
            num_later = -1  # until the limit
        self._num_later = num_later
        self._whole_sec = whole_sec
        self._is_measured = is_measured

    def update(self, passed_sec: float, left_sec: float | None) -> float:
        """Returns the time to the end."""
        if left_sec is not None and not self._is_measured:
            self._whole_sec = passed_sec + left_sec
        found = max(self._whole_sec - passed_sec, 0.0)
        found += max(self._num_later, 0) * self._whole_sec
        if self._limit_sec is None:
            return found
        limit_sec = max(self._limit_sec - passed_sec, 0.0)
        return limit_sec if self._num_later < 0 else min(found, limit_sec)
