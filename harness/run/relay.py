"""A relay: the processes of all cases of a generation take turns, round after round.

Cases that are measured within the same second see the same noise, so their ratio does
not (``docs/measuring.md``). Each case starts a fresh process, as many at a time as
there are cores. Each runs its last warm-up step alone, which tells how many steps make
a turn; that number is one for each case of a study. In every round each case has one
turn, in an order shuffled by the seed; both revisions of a case, and its twin, follow
each other. In a gate, each case has some sustained stretches in the same way. Whatever
happens to one trial does not end the generation.
"""

from __future__ import annotations

import collections
import contextlib
import time
from typing import TYPE_CHECKING, Final

from harness.errors import DoesNotFitError
from harness.machine.machine_state import read_free_memory
from harness.run import rounds, trial_runner
from harness.run.resident import Resident, ResidentEndedError, busy
from harness.trial import steps
from results.records.measuring import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.run.rounds import Generation, Stage
    from harness.run.trial_runner import RunSettings
    from results.records.models import StatusRecord
    from results.store.study_store import Store


# Nothing of a start is timed in a relay, so that processes import TensorFlow, build and
# trace side by side. When one is ready the next one starts: backends take unlike times.

_HEADROOM: Final = 1.2
"""Factor on the largest so far, when looking whether one more fits."""


def start_side_by_side(
    residents: Sequence[Resident], stage: Stage, free_memory: Callable[[], int]
) -> None:
    """Starts all processes, and returns when each has built its program or ended."""
    num_cores = len({core for resident in residents for core in resident.cores})
    waiting = collections.deque(residents)
    starting: list[Resident] = []
    sizes: dict[str, int] = {}
    while waiting or starting:
        while waiting and len(starting) < num_cores:
            started = residents[: len(residents) - len(waiting)]
            growth = [_size(r, sizes) - r.resident_bytes() for r in starting]
            needed = _size(waiting[0], sizes) + sum(max(0, more) for more in growth)
            _check_memory(len(residents), started, needed, free_memory())
            starting.append(waiting.popleft())
            spec = starting[-1].prepared.trial.spec
            control = spec.control is not Control.NONE
            name = (
                f"{spec.backend} x{spec.num_replicas}"
                + f" ({spec.control.label})" * control
                + f" of {spec.revision}" * bool(spec.revision)
            )
            stage(f"starting {name} ({len(started) + 1} of {len(residents)})", None)
            starting[-1].start()
            starting[-1].expect("imported")
        with busy(*starting):
            for resident in tuple(starting):
                if _advance(resident, is_alone=num_cores == 1):
                    starting.remove(resident)
                    backend = resident.prepared.trial.spec.backend
                    size = resident.resident_bytes()
                    sizes[backend] = max(sizes.get(backend, 0), size)


def _size(resident: Resident, sizes: Mapping[str, int]) -> int:
    """Returns the bytes that a process may need.

    The most that others of its backend occupy, or of any backend where it is the first.
    """
    largest = max(sizes.values(), default=0)
    return round(_HEADROOM * sizes.get(resident.prepared.trial.spec.backend, largest))


def _advance(resident: Resident, *, is_alone: bool) -> bool:
    """Whether a process has built its program, or has ended, after a moment more."""
    try:
        if resident.poll() is None:
            return False
        if resident.awaited == "built":
            return True
        resident.send("build", is_alone=is_alone)
        resident.expect("built")
    except ResidentEndedError:
        return True
    return False


def _check_memory(
    num_residents: int, started: Sequence[Resident], needed: int, free: int
) -> None:
    """Raises if what starts may not fit beside what has started."""
    if needed <= free:
        return
    used = sum(resident.resident_bytes() for resident in started)
    raise DoesNotFitError(
        f"{num_residents} processes do not fit into memory at once: the first"
        f" {len(started)} occupy {used / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are"
        f" free, and the next may need {needed / 2**30:.1f} GiB"
    )


_OF_FREE_MEMORY: Final = 0.5
"""How much of the free memory heaps may be given, all together."""


def run_generation(
    store: Store,
    generation: Generation,
    settings: RunSettings,
    stage: Stage,
    free_memory: Callable[[], int] = read_free_memory,
) -> list[StatusRecord]:
    """Runs the trials of a generation in turns, and records all of them."""
    start_sec = time.monotonic()
    deadline = None
    if generation.duration_sec is not None:
        deadline = start_sec + generation.duration_sec
    with _residents(store, generation, settings) as residents:
        start_side_by_side(residents, stage, free_memory)
        _warm_up(residents, stage, free_memory)
        generation.on_warm(residents)
        rounds.take_all(residents, generation, deadline, stage, settings.void_reason)
        stage("checking and recording", None)
        _finish(residents)
        changed = trial_runner.changed_code(settings)
        return [_record(store, each, settings, changed) for each in residents]


@contextlib.contextmanager
def _residents(
    store: Store, generation: Generation, settings: RunSettings
) -> Iterator[list[Resident]]:
    """Prepares all trials; kills every process at the end, however the block ends."""
    residents: list[Resident] = []
    end, timeout_sec = settings.launcher.end, settings.timeout_sec
    try:
        for trial in generation.trials:
            prepared = trial_runner.prepare(store, trial, settings)
            residents.append(
                Resident(prepared, timeout_sec=timeout_sec, end_elsewhere=end)
            )
        yield residents
    finally:
        for resident in residents:
            resident.kill()


def _warm_up(
    residents: Sequence[Resident], stage: Stage, free_memory: Callable[[], int]
) -> None:
    """Lets one after the other run its last warm-up step, alone."""
    # How much each process adds to its heap: the same for all, and it fits.
    used = sum(resident.resident_bytes() for resident in residents)
    fraction = min(steps.FRACTION, _OF_FREE_MEMORY * free_memory() / max(used, 1))
    less = (
        f"; heaps grow by {fraction:.0%}, not {steps.FRACTION:.0%}: little memory left"
    )
    stage("warming up" + less * (fraction < steps.FRACTION), None)
    for resident in residents:
        if not resident.is_alive:
            continue
        with busy(resident), contextlib.suppress(ResidentEndedError):
            resident.send("warm_up", heap_fraction=fraction)
            answers = resident.receive("ready")
            resident.step_time_sec = max(a["step_time_sec"] for a in answers)
            rounds.check_resolution(resident, resident.step_time_sec)


def _finish(residents: Sequence[Resident]) -> None:
    """Lets all check and record side by side; nothing is timed any more."""
    alive = [resident for resident in residents if resident.is_alive]
    with busy(*alive):
        for resident in alive:
            resident.send("finish")
        for resident in alive:
            resident.wait()


def _record(
    store: Store, resident: Resident, settings: RunSettings, changed_code: str
) -> StatusRecord:
    assert resident.exit is not None
    turns = [turn for turn in resident.turns if turn.is_valid] or resident.turns
    means: dict[str, float | None] = {}
    for name in ("foreign_cpu_fraction", "stolen_cpu_fraction"):  # of the time of all
        known = [turn for turn in turns if getattr(turn, name) is not None]
        spent = sum(getattr(turn, name) * turn.time_sec for turn in known)
        total_sec = sum(turn.time_sec for turn in known)
        means[name] = spent / total_sec if known else None
    return trial_runner.record(
        store,
        resident.prepared,
        resident.exit,
        settings,
        disturbance=means,
        turns=resident.turns,
        duration_sec=resident.busy_sec,
        changed_code=changed_code,
    )
