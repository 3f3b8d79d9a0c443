"""An A/A pair, interleaved: what an interval of this machine would be worth.

The same small case twice, for a minute. Their ratio is 1, so the rounds show the noise
that is left after pairing, and from it follows the interval of a default sweep. The
spread between processes cannot be seen in one repetition, and is assumed.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Final

from harness.doctor.checks import Finding, judged
from harness.errors import DoesNotFitError
from harness.machine import owned_folders
from harness.planning import checked, defaults, plan
from harness.planning.request import SweepRequest
from harness.run.rounds import Repetition
from harness.run.trial_runner import RunSettings
from results.figures import conditions, scaling
from results.records.models import Order, Plan, ScalingMode
from results.statistics import group_sequential
from results.store.study_store import Store
from results.study.cases import Study, load_study

CHECK: Final = "A/A pair"
LEAST_SEC: Final = 30.0
"""Starting the two processes alone takes 15 s or more."""
NUM_CASES: Final = 6
"""Cases of the sweep that is predicted: the default one has so many on two cores."""
PROCESS_SPREAD: Final = 0.02
"""Assumed deviation between processes of one case."""
WIDEST_GOOD: Final = 0.06
"""Half width that the primary ratio of a default sweep should not exceed."""

_MOST_ROUNDS = 10_000
_SEED = 0
_TIMEOUT_SEC = 300.0
_ADVICE = "end other programs, or measure longer: --time-budget, --target"


def predict(deviation: float, block_sec: float, start_sec: float) -> tuple[int, float]:
    """Predicts rounds of a default run, and half the width of log(ratio)'s interval."""
    repetition_sec = defaults.MINUTES * 60 / defaults.REPETITIONS
    left_sec = repetition_sec - NUM_CASES * start_sec
    num_rounds = int(left_sec / (NUM_CASES * block_sec))
    num_rounds = min(max(num_rounds, 1), defaults.MAX_ROUNDS)
    spread = math.sqrt(2 * PROCESS_SPREAD**2 + deviation**2 / num_rounds)
    return num_rounds, group_sequential.median_half_width(spread, defaults.REPETITIONS)


def make_plan(num_cores: int) -> Plan:
    """Returns the plan of one small case and its A/A control, on at most two cores."""
    request = SweepRequest(
        workload="resnet50",
        preset="smoke",
        backends=("in_graph",),
        replicas=(min(num_cores, 2),),
        modes=(ScalingMode.WEAK,),
        repeats=1,
        order=Order.INTERLEAVED,
        budget="none",
        is_matched=False,
        seed=_SEED,
        timeout_sec=_TIMEOUT_SEC,
    )
    machine = checked.Machine(num_available_cores=num_cores)
    command = ("python", "-m", "harness", "doctor")
    sweep = checked.check(request, machine)
    return plan.arrange(sweep, study="doctor", command=command)[0]


def check_pair(
    cores: Sequence[int], duration_sec: float, settings: RunSettings | None = None
) -> list[Finding]:
    settings = settings or RunSettings(timeout_sec=_TIMEOUT_SEC)
    with owned_folders.made(owned_folders.DOCTOR) as folder:
        store = Store.create(folder.path / "doctor")
        store.write_plan(make_plan(len(cores)))
        first_round: list[float] = []

        def notice(text: str, _left_sec: float | None) -> None:
            if text.startswith("round ") and not first_round:
                first_round.append(time.monotonic())

        started = time.monotonic()
        repetition = Repetition(
            trials=store.read_plan().trials,
            index=0,
            duration_sec=duration_sec,
            max_rounds=_MOST_ROUNDS,
            seed=_SEED,
            stage=notice,
        )
        try:
            repetition.run(store, settings)
        except DoesNotFitError as error:
            advice = "free memory: both processes are needed at once"
            return [Finding(CHECK, "caution", f"not measured: {error}", advice)]
        start_sec = (first_round[0] - started) if first_round else math.nan
        study = load_study(store)
        return [judge(study, start_sec / len(repetition.trials))]


def judge(study: Study, start_sec: float) -> Finding:
    counts = conditions.count_blocks(study)
    if counts.is_unfit:
        predicted = (
            f"{counts.num_discarded} of {counts.num_blocks} blocks are discarded: in"
            f" {counts.reasons[0][1]} of them {counts.reasons[0][0]}"
        )
        advice = "find what disturbs the cores: nothing would be judged"
        return Finding(CHECK, "bad", predicted, advice)
    failed = [entry for entry in study.planned if not entry.is_ok]
    aa_control = conditions.aa_control_of(study)
    if failed or aa_control is None:
        reason = failed[0].reason if failed else "no round has a valid block of both"
        advice = "run 'sweep --workload resnet50 --preset smoke' to see more"
        return Finding(CHECK, "caution", f"not measured: {reason}", advice)
    (logs,) = scaling.block_logs(study.controls[0], aa_control.case)
    if len(logs) < 2:  # noqa: PLR2004 - a deviation needs two
        reason = "not measured: only one round has valid blocks of both"
        return Finding(CHECK, "caution", reason, _ADVICE)
    deviation = statistics.stdev(logs)
    starts = sorted(block.start_ns for entry in study.planned for block in entry.blocks)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    block_sec = statistics.median(gaps) / 1e9  # from one to the next
    num_rounds, half_width = predict(deviation, block_sec, start_sec)
    ratio = aa_control.ratio
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    width = math.expm1(half_width)
    text = (
        f"ratio {ratio.value:.3f}{interval} in {len(logs)} rounds, which vary by"
        f" {deviation:.1%}; {counts.num_discarded} of {counts.num_blocks} blocks "
        f"discarded; in {defaults.MINUTES:g} min a ratio of {NUM_CASES} such cases "
        f"would be known to +-{width:.1%} ({defaults.REPETITIONS} runs of "
        f"{num_rounds} rounds, {PROCESS_SPREAD:.0%} between processes assumed)"
    ).replace("%", " %")
    return judged(CHECK, text, caution={_ADVICE: width > WIDEST_GOOD})
