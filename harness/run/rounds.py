"""An interleaved measurement: all cases of a repetition take turns, round after round.

Cases that are measured within the same second see the same noise, so their ratio does
not (``docs/measuring.md``). Each case starts a fresh process, and runs its last warm-up
step alone, which tells how many steps make a block. In every round each case has one
block, in an order shuffled by the seed; both revisions of a case, and its A/A control,
follow each other, since what is divided should lie close together. In a gate, sustained
stretches follow. Whatever happens to one trial does not end the repetition.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import random
import time
from typing import TYPE_CHECKING, Any, Final

from harness.errors import DoesNotFitError
from harness.machine import disturbance, machine_state
from harness.machine.gpu_watch import GpuWatch
from harness.run import trial_runner
from harness.run.trial_tree import Session, SessionEndedError, busy
from harness.trial import measure, rank_file
from results.records.measuring import MAX_ATTEMPTS, Block, Control, Order
from results.statistics import estimates
from results.store import untrusted, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from harness.run.trial_runner import RunSettings
    from results.records.models import PlannedTrial, StatusRecord, TrialSpec
    from results.store.study_store import Store, Trial


# The harness writes what others did to the cores, between blocks; ``verify`` reads it.

BLOCKS_NAME = "blocks.jsonl"
_USED: Final = (
    *("user_sec", "system_sec", "minor_faults", "major_faults"),
    *("involuntary_switches", "num_retraces"),
)
"""What every process says that it used; the sum is recorded."""


def last_block(trial_dir: Path) -> tuple[int, bool] | None:
    """Returns round and kind of the last whole block, to show where a study is."""
    try:
        text = untrusted.read_text(trial_dir / BLOCKS_NAME) or ""
        block = untrusted.parsed(text.rpartition("\n")[0].splitlines()[-1])
        return int(block["round_index"]), bool(block.get("is_sustained"))
    except rank_file.MALFORMED:
        return None


def append(trial_dir: Path, block: Block, load: Mapping[str, Any]) -> None:
    gpus = [use.model_dump(mode="json") for use in block.gpus]
    own = {"round_index": block.round_index, "attempt": block.attempt, "gpus": gpus}
    line = {**load, **own, "is_sustained": block.is_sustained}
    line = {k: value for k, value in line.items() if value is not False and value != []}
    path = trial_dir / BLOCKS_NAME
    with writing.reporting(path, "free space there, then run the same command again"):
        writing.check_fence(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


MIN_ROUNDS: Final = 5
"""Rounds of a repetition, however little time is left for them."""
MIN_STEP_SEC: Final = 1e-4
"""Shortest step of a program with a client: recording one takes a few microseconds."""
SUSTAINED_STEPS: Final = 13
"""Fewest steps of one: four stretches see a step in fifty about once."""


def steps_of_blocks(trials: Iterable[Trial]) -> dict[str, int]:
    """Returns the steps of a block by case, of the first repetition that has any."""
    steps: dict[str, int] = {}
    for trial in sorted(trials, key=lambda trial: trial.spec.repetition_index):
        blocks = () if trial.result is None else trial.result.blocks
        for block in blocks:
            if not block.is_sustained:
                steps.setdefault(case_of(trial.spec), block.num_steps)
                break
    return steps


def check_resolution(session: Session, step_sec: float) -> None:
    """Ends a trial whose steps are too short to be timed one by one."""
    if session.prepared.is_client and step_sec < MIN_STEP_SEC:
        session.fail(
            f"a step took {1e6 * step_sec:.0f} us, less than the {1e6 * MIN_STEP_SEC:g}"
            f" us that can be timed: wait for the device before step.done(), or do more"
            " work per step, and give the examples of all of it",
            0,
        )


_HEADROOM: Final = 1.2
"""Factor on the largest so far, when looking whether one more process fits."""
_OF_FREE_MEMORY: Final = 0.5
"""How much of the free memory heaps may be given, all together."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """The processes of a repetition, and what is asked of them."""

    trials: Sequence[PlannedTrial]  # One per case.
    index: int  # From 0.
    duration_sec: float | None  # The time for all of it; None for no limit.
    max_rounds: int
    seed: int  # Determines the order of the blocks.
    stage: Callable[[str, float | None], None]
    num_stretches: int = 0  # Sustained ones of each case, after the rounds.
    # Steps of each block by case, as earlier repetitions had them.
    steps_of_block: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # Called before the first block.
    on_warm: Callable[[Sequence[Session]], None] = lambda _: None
    sessions: list[Session] = dataclasses.field(default_factory=list)

    def run(self, store: Store, settings: RunSettings) -> list[StatusRecord]:
        deadline = math.inf
        if self.duration_sec is not None:
            deadline = time.monotonic() + self.duration_sec
        with contextlib.ExitStack() as stack:  # kills all, however the block ends
            for trial in self.trials:
                prepared = trial_runner.prepare(store, trial, settings)
                session = Session(prepared, timeout_sec=settings.timeout_sec)
                self.sessions.append(session)
                stack.callback(session.kill)
            self.start_side_by_side()
            self.warm_up()
            self.on_warm(self.sessions)
            self.take_all(deadline)
            self.stage("checking and recording", None)
            # Side by side: nothing is timed any more.
            alive = [session for session in self.sessions if session.is_alive]
            with busy(*alive):
                for session in alive:
                    session.send("finish")
                for session in alive:
                    session.wait()
            changed = trial_runner.changed_code(settings)
            return [_record(session, changed) for session in self.sessions]

    def start_side_by_side(self) -> None:
        """Returns when each process has built its program or ended; none is timed."""
        sessions = self.sessions
        num_cores = len({core for session in sessions for core in session.cores})
        waiting = collections.deque(sessions)
        starting: list[Session] = []
        sizes: dict[str, int] = {}

        def size(session: Session) -> int:
            """The bytes that it may need: the most of its backend, or of any."""
            largest = max(sizes.values(), default=0)
            return round(_HEADROOM * sizes.get(session.spec.backend, largest))

        while waiting or starting:
            while waiting and len(starting) < num_cores:
                started = sessions[: len(sessions) - len(waiting)]
                growth = [size(each) - each.resident_bytes() for each in starting]
                needed = size(waiting[0]) + sum(max(0, more) for more in growth)
                if needed > (free := machine_state.read_free_memory()):
                    used = sum(session.resident_bytes() for session in started)
                    raise DoesNotFitError(
                        f"{len(sessions)} processes do not fit into memory at once: the"
                        f" first {len(started)} occupy {used / 2**30:.1f} GiB,"
                        f" {free / 2**30:.1f} GiB are free, and the next may need"
                        f" {needed / 2**30:.1f} GiB"
                    )
                starting.append(waiting.popleft())
                spec = starting[-1].spec
                name = (
                    f"{spec.backend} x{spec.num_replicas}"
                    + f" ({spec.control.label})" * (spec.control is not Control.NONE)
                    + f" of {spec.revision}" * bool(spec.revision)
                )
                number = f"{len(started) + 1} of {len(sessions)}"
                self.stage(f"starting {name} ({number})", None)
                starting[-1].start()
                starting[-1].expect("imported")
            with busy(*starting):
                for session in tuple(starting):
                    if _advance(session, is_alone=num_cores == 1):
                        starting.remove(session)
                        backend, now = session.spec.backend, session.resident_bytes()
                        sizes[backend] = max(sizes.get(backend, 0), now)

    def warm_up(self) -> None:
        """Lets one after the other run its last warm-up step, alone."""
        # How much each process adds to its heap: the same for all, and it fits.
        used = sum(session.resident_bytes() for session in self.sessions)
        usual, free = measure.FRACTION, machine_state.read_free_memory()
        fraction = min(usual, _OF_FREE_MEMORY * free / max(used, 1))
        less = f"; heaps grow by {fraction:.0%}, not {usual:.0%}: little memory left"
        self.stage("warming up" + less * (fraction < usual), None)
        for session in self.sessions:
            if not session.is_alive:
                continue
            with busy(session), contextlib.suppress(SessionEndedError):
                session.send("warm_up", heap_fraction=fraction)
                answers = session.receive("ready")
                session.step_time_sec = max(a["step_time_sec"] for a in answers)
                check_resolution(session, session.step_time_sec)

    def take_all(self, deadline: float) -> None:
        # One that has ended had no warm step: its 0 s would ask for 300,000 steps a
        # block.
        waiting = [session for session in self.sessions if session.is_alive]
        number, stretches = self.num_stretches, []
        if number:
            plain = [each for each in waiting if each.spec.control is Control.NONE]
            groups = _by_case(plain).values()
            stretches = [(group, _steps_of_stretch(group)) for group in groups]
        stretches_sec = sum(n * _step_sec(each) * len(each) for each, n in stretches)
        self._take_rounds(waiting, deadline - number * stretches_sec)
        seed = f"{self.seed}/{self.index}/sustained"
        generator = random.Random(seed)  # noqa: S311
        for index in range(number):
            left_sec = (number - index) * stretches_sec
            self.stage(f"sustained {index + 1} of {number}", left_sec)
            for group, num_steps in generator.sample(stretches, len(stretches)):
                # Their rounds follow all others. The garbage collector works in them if
                # both revisions let it work; a program that does not never sees the
                # field.
                asked = {"round_index": self.max_rounds + index}
                asked |= {"num_steps": num_steps, "is_sustained": True}
                is_collecting = all(each.has_sustained for each in group)
                both = [session for session in group if session.is_alive]
                for session in generator.sample(both, len(both)):
                    self._measure_block(session, asked, is_collecting=is_collecting)

    def _take_rounds(self, sessions: Sequence[Session], deadline: float) -> None:
        longest_round_sec = 0.0
        generator = random.Random(f"{self.seed}/{self.index}")  # noqa: S311
        numbers = _steps_of_blocks(sessions, self.steps_of_block)
        revisions = {trial.spec.revision for trial in self.trials}
        for round_index in range(self.max_rounds):
            alive = [session for session in sessions if session.is_alive]
            now = time.monotonic()
            left = deadline - now
            # Where all of one of two revisions have ended, nothing is left to compare.
            is_one_sided = {each.spec.revision for each in alive} != revisions
            is_over = is_one_sided or left < longest_round_sec
            if not alive or (round_index >= MIN_ROUNDS and is_over):
                return
            expected = (self.max_rounds - round_index) * longest_round_sec
            if left < math.inf:
                expected = min(expected, left) if longest_round_sec else left
            groups = list(_by_case(alive).items())
            generator.shuffle(groups)
            for case, group in groups:  # those of one case one after another
                generator.shuffle(group)
                text = f"round {round_index + 1}: {_so_far(group[0])}"
                self.stage(text, max(expected - (time.monotonic() - now), 0.0))
                for session in group:
                    asked = {"round_index": round_index, "num_steps": numbers[case]}
                    self._measure_block(session, asked)
            longest_round_sec = max(longest_round_sec, time.monotonic() - now)

    def _measure_block(
        self, session: Session, asked: Mapping[str, Any], *, is_collecting: bool = False
    ) -> None:
        with busy(session), contextlib.suppress(SessionEndedError):
            for attempt in range(MAX_ATTEMPTS):
                own = {**asked, "attempt": attempt}
                self._attempt_block(session, own, is_collecting)
                if session.blocks[-1].is_valid:
                    return

    def _attempt_block(
        self, session: Session, asked: Mapping[str, Any], is_collecting: bool
    ) -> None:
        sent = {k: v for k, v in asked.items() if k != "is_sustained" or is_collecting}
        pids = [process.pid for process in session.processes()]
        with GpuWatch(session.prepared.gpus) as watch:
            before = disturbance.read_core_clock(session.cores, pids)
            session.send("turn", **sent)
            answers = session.receive("turn")
            # From the latest start on, all ranks were measuring.
            names = ("start_ns", "end_ns")
            span = {name: max(answer[name] for answer in answers) for name in names}
            block_ns = span["end_ns"] - span["start_ns"]
            check_resolution(session, block_ns / asked["num_steps"] / 1e9)
            after = disturbance.read_core_clock(session.cores, pids)
        settings = session.prepared.settings
        load = dataclasses.replace(settings.load(before, after), gpus=watch.uses())
        used = {name: sum(answer[name] for answer in answers) for name in _USED}
        facts = measure.fields_of(load)
        block = Block(
            **asked,
            **span,
            **used,
            **{name: facts[name] for name in facts.keys() & Block.model_fields.keys()},
            discard_reason=settings.discard_reason(load, used["num_retraces"]),
        )
        folder = session.prepared.trial_dir
        if reason := rank_file.put_aside(folder / BLOCKS_NAME):
            session.fail(reason)
        append(folder, block, facts)
        session.blocks.append(block)


def _so_far(session: Session) -> str:
    """Names a case, with its rate in this run and an interval over its rounds."""
    spec = session.spec
    name = f"{spec.backend} x{spec.num_replicas}"
    valid = [block for block in session.blocks if block.is_valid]
    if len(valid) < MIN_ROUNDS:
        return name
    size = spec.global_batch_size
    rates = [1e9 * size * b.num_steps / (b.end_ns - b.start_ns) for b in valid]
    rate = estimates.these_processes_only([*map(math.log, rates)])
    return f"{name}, {rate.value:,.2f} [{rate.low:,.2f}, {rate.high:,.2f}]/s so far"


def case_of(spec: TrialSpec) -> str:
    """Returns what repetitions and revisions of a case, and its A/A control, share."""
    control = Control.NONE if spec.control is Control.AA else spec.control
    apart = {"revision", "code_digest", "control", "repetition_index", "seed"}
    return f"{control.value} {spec.model_dump_json(exclude=apart)}"


def _step_sec(group: Sequence[Session]) -> float:
    return max(1e-6, *(session.step_time_sec for session in group))


def _steps_of_stretch(group: Sequence[Session]) -> int:
    """Returns the steps of a sustained stretch: as many of both revisions of a case."""
    shortest_sec = group[0].prepared.settings.min_stretch_sec
    number = max(SUSTAINED_STEPS, math.ceil(shortest_sec / _step_sec(group)))
    return measure.whole_blocks(number, group[0].spec)


def _steps_of_blocks(
    sessions: Sequence[Session], known: Mapping[str, int]
) -> dict[str, int]:
    """Returns the steps of a block by case, as many for all of its sessions."""
    steps = dict(known)
    for name, group in _by_case(sessions).items():
        if name not in known:
            step_sec = min(max(session.step_time_sec, 1e-6) for session in group)
            shortest_sec = group[0].prepared.settings.min_block_sec
            number = max(1, math.ceil(shortest_sec / step_sec))
            steps[name] = measure.whole_blocks(number, group[0].spec)
    return steps


def _by_case(sessions: Iterable[Session]) -> dict[str, list[Session]]:
    groups: dict[str, list[Session]] = {}
    for session in sessions:
        groups.setdefault(case_of(session.spec), []).append(session)
    return groups


def interleaved_sec(trials: Iterable[Trial]) -> float:
    return sum(
        trial.status.duration_sec
        for trial in trials
        if trial.spec.order is Order.INTERLEAVED and trial.status is not None
    )


def _advance(session: Session, *, is_alone: bool) -> bool:
    """Whether a process has built its program, or has ended, after a moment more."""
    try:
        if session.poll() is None:
            return False
        if session.awaited == "built":
            return True
        session.send("build", is_alone=is_alone)
        session.expect("built")
    except SessionEndedError:
        return True
    return False


def _record(session: Session, changed_code: str) -> StatusRecord:
    assert session.exit is not None
    blocks = [block for block in session.blocks if block.is_valid] or session.blocks
    means: dict[str, float | None] = {}
    for name in ("foreign_cpu_fraction", "stolen_cpu_fraction"):  # of the time of all
        known = [block for block in blocks if getattr(block, name) is not None]
        spent = sum(getattr(block, name) * block.time_sec for block in known)
        total_sec = sum(block.time_sec for block in known)
        means[name] = spent / total_sec if known else None
    return session.prepared.record(
        session.exit,
        disturbance=means,
        blocks=session.blocks,
        duration_sec=session.busy_sec,
        changed_code=changed_code,
    )
