"""What sentences and numbers of a page claim, and how often they erred.

A sentence of the first screen is either in ``SENTENCES`` with the row of
the table that says what it is worth, or with None: it claims nothing. Others are not
printed (``tests/reports/words/test_caveats.py``). ``ROWS`` has the row of
each number below the first screen.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import tempfile
from pathlib import Path

import noise_models
import numpy as np
import synthetic
from noise_models import Change

from results import figures, judging, statistics
from results.statistics import Verdict

STANDARD_ERRORS, CERTAIN_ERRORS = 2, 3
"""Of the simulation. Of a hundred cells some are two of them away by chance."""


def misses(share, least, most, n, standard_errors=STANDARD_ERRORS):
    """Whether a share of n simulations is beyond its bounds, which may be None."""
    for bound, sign in ((least, 1), (most, -1)):
        if bound is not None:
            error = math.sqrt(bound * (1 - bound) / n)
            if sign * (bound - share) > standard_errors * error:
                return True
    return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One number or sentence of a page, and what it is worth."""

    name: str  # What a reader sees.
    claimed: str  # In words.
    simulated: str  # The truth and the noise.
    # What was found, the lowest and the highest of several noises.
    shares: tuple[float, ...]
    least: float | None = None  # Shares must be at least this.
    most: float | None = None  # Shares must be at most this.
    n: int  # Simulations of each share.
    is_claimed: bool = True  # Whether anything is claimed; where not, the page says so.

    def misses(self, standard_errors=STANDARD_ERRORS):
        """Whether the claim is missed."""
        return self.is_claimed and any(
            misses(share, self.least, self.most, self.n, standard_errors)
            for share in self.shares
        )

    @property
    def cells(self):
        """The row of the table."""
        low, high = (f"{share:.3f}" for share in (min(self.shares), max(self.shares)))
        return (self.name, self.claimed, self.simulated, low, high, str(self.n))


def write(path, table):
    """Writes a table, its heads first, as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(table)


NUM_REPETITIONS = 5
NUM_CASES = 6
NUMBERS_OF_RUNS = (3, 5, 8, 12)
UNLIKE_RUNS = ((3, 5), (5, 3), (5, 5), (4, 10))
QUALITY_SEEDS = (5, 8)
NUMBERS_OF_TRIALS = (3, 5, 10)
BOUNDS = {"least": 0.93, "most": 0.98}
MOST_MISSED = 0.1

INTERVAL = "90 % [88, 92], 1.30x [1.25, 1.35]: an interval of a ratio"
FASTER = "X is 1.30x as fast as Y"
TARGET = "above the target, below the target"
LOSS = "Most of what X loses: CAUSE"
BUSY = "busy machine: intervals are wider (189 of 472 blocks discarded)"
BESIDE = "measured beside load: no evidence"
RATE = "18.3 [17.9, 18.7] images/s: an interval of a rate"
APART = "1.30x [1.25, 1.35], Welch's t: a ratio of cases without common runs"
# Row by pattern, of whole sentences; None where nothing is claimed.
_FIGURE = r"[\d.,]+(\u00d7| %)? \[[^\]]+\]"
_ANSWER = (
    r"(?!Whether ).+ (trains|runs) [\d.]+ times as fast on .* \([\d.]+ % of ideal"
    r"(, between [\d.]+ and [\d.]+ %)?"
)
SENTENCES = (
    (r"Busy machine: intervals are wider \(\d+ of \d+ blocks discarded\)\.", BUSY),
    (r"Busy machine: all blocks of .* were disturbed, .* no evidence\.", BESIDE),
    (rf"{_ANSWER}; beside load: no evidence\).*\.", BESIDE),
    (rf"{_ANSWER}; (one .*: no interval|these processes only)\).*\.", None),
    (rf"{_ANSWER}\), [\d.]+ times as fast as .*\.", FASTER),
    (rf"{_ANSWER}\), faster than .* \(corrected for \d+ comparisons, Holm\)\.", FASTER),
    (rf"{_ANSWER}\).*\.", INTERVAL),
    # Named: the page has a table of several backends before it.
    (rf"Most of what (?!it )\S+ loses[^:]*: [^,]+, {_FIGURE} of a step\.", LOSS),
    (
        (
            rf"(?!It )\S+ loses {_FIGURE} of a step[^;]*; no single cause is shown to"
            r" be most of it\."
        ),
        INTERVAL,
    ),
    (r".*\binconclusive\b.*\.", None),
    (r"Causes were not recorded\.", None),
    (r"The harness's clock (contradicts|does not confirm) the rates: .*", None),
    (r"An efficiency above \d+ % is not plausible\. .*", None),
    (r"One run tells no cause of lost time\.", None),
    (r"Throughput was measured, of one case: there is no ratio\.", None),
    (r"(Nothing was measured|No verdict): .*\.", None),
)


def row_of(sentence):
    """Returns the row of a sentence; None where it claims nothing."""
    for pattern, row in SENTENCES:
        if re.fullmatch(pattern, sentence):
            return row
    raise LookupError(sentence)


PART = "waiting for collectives: 10 ms [9, 11]: a part of the waterfall"
TRIALS = "512 MiB [500, 524]: peak memory, time to first step, FLOP utilisation"
OF_BLOCKS = "computing: 4 ms [3, 5]: a part of the waterfall without controls"
ALONE = "pipelines alone take 93 % [91, 95] of a step: input-bound, or not"
ROWS = {
    **dict.fromkeys(("speedup", "efficiency", "efficiency_of_best"), INTERVAL),
    "throughput": RATE,
    **dict.fromkeys(("time_to_first_step", "peak_memory", "flop_utilisation"), TRIALS),
    "parts by controls": PART,
    "parts by blocks": OF_BLOCKS,
    "input": ALONE,
}
"""Row of each number, by its quantity in ``points_frame``."""


def quick_rows(num, seed):
    """Rows that take seconds."""
    yield from _of_interleaved(num, seed)
    yield _causes()
    yield from _rates(num, seed)
    yield _apart(num, seed)
    yield from _learned(num, seed)
    yield from _quality_gates(num, seed)
    yield _input_bound(num, seed)
    yield _trials(num, seed)
    yield _parts(num, seed)


def rows(num, seed):
    yield from quick_rows(num, seed)
    yield _parts_of_blocks(num, seed)


def _of_interleaved(num, seed):
    covered, false, differs = [], [], []
    for model in noise_models.MODELS:
        logs = noise_models.simulate(
            model,
            Change(),
            num_gates=num,
            num_repetitions=NUM_REPETITIONS,
            num_cases=NUM_CASES,
            seed=seed,
        )
        primary = logs.rounds[..., 0]
        ratios = [statistics.over_rounds(of.tolist()) for of in primary]
        covered.append(float(np.mean([not of.excludes(1.0) for of in ratios])))
        aa_controls = [
            statistics.mean_of_rounds(of.tolist()).estimate("", confidence=0.99)
            for of in primary
        ]
        differs.append(float(np.mean([of.excludes(0.0) for of in aa_controls])))
        if not noise_models.MODELS[model].neighbour:
            # Backends run on the same cores; in that model, every other case does not.
            false.append(float(np.mean([_any_faster(of) for of in logs.rates])))
    noises = f"{len(covered)} kinds of noise, {NUM_REPETITIONS} runs"
    yield Row(
        name=INTERVAL,
        claimed="holds the truth in 95 %",
        simulated=f"equal programs; {noises}",
        shares=(min(covered), max(covered)),
        **BOUNDS,
        n=num,
    )
    yield Row(
        name=TARGET,
        claimed="false in at most 5 %",
        simulated=f"an efficiency of exactly the target; {noises}",
        shares=(1 - max(covered), 1 - min(covered)),
        most=0.07,
        n=num,
    )
    yield Row(
        name=FASTER,
        claimed="any false one in at most 5 % of studies",
        simulated=f"{NUM_CASES} equal backends on the same cores, 15 ratios (Holm);"
        f" {len(false)} kinds of noise, {NUM_REPETITIONS} runs",
        shares=(min(false), max(false)),
        most=0.05,
        n=num,
    )
    yield Row(
        name="No verdict: the A/A control differs",
        claimed="false in 1 %",
        simulated=f"a case measured twice; {noises}",
        shares=(min(differs), max(differs)),
        most=0.02,
        n=num,
    )


def _any_faster(rates):
    """Whether any ratio of equal cases holds; over repetitions, rounds and cases."""
    pairs = [(a, b) for a in range(rates.shape[-1]) for b in range(a)]
    p_values = {
        pair: statistics.mean_of_rounds(logs.tolist()).p_value()
        for pair in pairs
        for logs in [rates[..., pair[0]] - rates[..., pair[1]]]
    }
    return min(statistics.holm(p_values).values()) < 0.05


def _causes():
    studies = [
        (wanted, synthetic.of_controls(truth, seed).main_loss)
        for wanted, truth in synthetic.OF_CONTROLS
        for seed in range(20)
    ]
    return Row(
        name=LOSS,
        claimed="no other cause than the true one, and none where nothing is lost",
        simulated="one known loss of 12 of 57 ms, or none; 3 % between runs",
        shares=(
            float(np.mean([found not in ("", wanted) for wanted, found in studies])),
        ),
        most=0.0,
        n=len(studies),
    )


def _rates(num, seed):
    generator = np.random.default_rng(seed)
    hours = generator.normal(0, 0.02, num)
    logs = hours[:, None] + generator.normal(0, 0.03, (num, NUM_REPETITIONS))
    found = [statistics.over_repetitions(of.tolist()) for of in logs]
    own = [not of.excludes(it) for of, it in zip(found, np.exp(hours), strict=True)]
    other = [not of.excludes(1.0) for of in found]
    row = Row(
        name=RATE,
        claimed="holds the rate of its own hour in 95 %",
        simulated="the rate of its own hour; 2 % between hours, 3 % between runs",
        shares=(float(np.mean(own)),),
        **BOUNDS,
        n=num,
    )
    yield row
    yield dataclasses.replace(
        row,
        claimed="nothing: the page says from when to when it holds",
        simulated="the rate of another hour; 2 % between hours, 3 % between runs",
        shares=(float(np.mean(other)),),
        is_claimed=False,
    )


def _apart(num, seed):
    """Of equal spreads, and where one case has three times that of the other."""
    shares = []
    for numbers in UNLIKE_RUNS:
        for spread in (0.02, 0.06):
            generator = np.random.default_rng([seed, *numbers])
            held = 0
            for _ in range(num):
                first = np.exp(generator.normal(0, 0.02, numbers[0]))
                second = np.exp(generator.normal(0, spread, numbers[1]))
                runs = dict(enumerate(second, start=numbers[0]))
                held += not statistics.ratio(dict(enumerate(first)), runs).excludes(1.0)
            shares.append(held / num)
    return Row(
        name=APART,
        claimed="holds the truth in 95 %",
        simulated="equal programs; 2 % between runs, or 6 % in one of the cases;"
        " 3 to 10 runs",
        shares=tuple(shares),
        **BOUNDS,
        n=num,
    )


def returns(generator, *size):
    """Results of runs of which one in five fails."""
    fails = generator.random(size) < 0.2
    return np.where(
        fails, generator.normal(100, 30, size), generator.normal(800, 40, size)
    )


def _learned(num, seed):
    generator = np.random.default_rng(seed)
    everything = np.sort(returns(generator, 400_000))
    truths = {
        "the trimmed mean": everything[80_000:320_000].mean(),
        "the mean": everything.mean(),
    }
    of_runs = {
        n: [statistics.score(of.tolist()) for of in returns(generator, num, n)]
        for n in NUMBERS_OF_RUNS
    }
    for name, truth in truths.items():
        is_claimed = name != "the mean"
        shares = [
            float(np.mean([not found.excludes(truth) for found in of]))
            for of in of_runs.values()
        ]
        yield Row(
            name="862 [790, 901]: what runs with other seeds learn",
            claimed=f"holds {name} of all runs in 95 %"
            if is_claimed
            else f"nothing: {name} is named nowhere",
            simulated="one run in five fails; 3, 5, 8 and 12 runs",
            shares=(min(shares), max(shares)),
            **BOUNDS,
            n=num,
            is_claimed=is_claimed,
        )
    better = [
        statistics.probability_of_improvement(
            *generator.normal(0, 1, (2, 5)), is_higher_better=True
        )
        for _ in range(num)
    ]
    yield Row(
        name="a run with more replicas is better in 60 % [30, 84]",
        claimed="holds the truth in 95 % or more",
        simulated="equal cases; 5 runs each",
        shares=(float(np.mean([not found.excludes(0.5) for found in better])),),
        least=0.95,
        n=num,
    )

    def seems_missed(n):
        first, second = generator.standard_normal((2, n))
        target, _ = statistics.target_of(first, is_higher_better=True, num_others=n)
        return int((second >= target).sum()) < n // 2 + 1

    missed = [np.mean([seems_missed(n) for _ in range(num)]) for n in (5, 8)]
    yield Row(
        name="never reaches the target",
        claimed=f"false in at most {MOST_MISSED:.0%}",
        simulated="equal cases; 5 and 8 runs each (of 3 or 4 the page states 20 %)",
        shares=tuple(map(float, missed)),
        most=MOST_MISSED,
        n=num,
    )


def _quality_gates(num, seed):
    """Gates on what is learned, of runs of which one in five fails."""
    generator = np.random.default_rng(seed)
    metric = judging.metric_of("throughput")
    rule = judging.Rule(metric=metric, delta=0.05, alpha=0.05)
    for name, verdicts, loss, truth in (
        ("REGRESS", {Verdict.REGRESS}, 0.0, "equal programs"),
        (
            "PASS",
            {Verdict.PASS, Verdict.IMPROVE},
            rule.delta * 800,
            "a median loss of delta",
        ),
    ):
        shares = []
        for n in QUALITY_SEEDS:
            found = 0
            for ours, theirs in returns(generator, num, 2, n):
                scale = -1 / np.median(theirs)
                judgement, _ = judging.judge_losses(
                    list(scale * (ours - loss)),
                    list(scale * theirs),
                    rule,
                    is_paired=True,
                )
                found += judgement.verdict in verdicts
            shares.append(found / num)
        yield Row(
            name=f"{name}: top_1 (a gate on what is learned)",
            claimed="false in at most 5 %",
            simulated=f"{truth}; one run in five fails; 5 and 8 seeds",
            shares=(min(shares), max(shares)),
            most=0.05,
            n=num,
        )


def _parts(num, seed):
    """Ten milliseconds in each part in turn, and in none."""
    shares = []
    for index, injected in enumerate(synthetic.AFFECTED):
        generator = np.random.default_rng([seed, index])
        held = {}
        for _ in range(num):
            for name, is_held in synthetic.held_by_controls(generator, injected):
                held[name] = held.get(name, 0) + is_held
        # An imbalance of nothing cannot be negative, so its mean is not 0.
        names = held.keys() - {"imbalance"} | {injected} - {"none"}
        shares += [held[name] / num for name in sorted(names)]
    return Row(
        name=PART,
        claimed="holds the truth in 95 %; an imbalance, where there is one",
        simulated="10 of 60 ms in one part, or in none; 3 % between runs and 2 %"
        " between processes, 5 runs, all controls",
        shares=tuple(shares),
        **BOUNDS,
        n=num,
    )


def _parts_of_blocks(num, seed):
    """Twelve milliseconds in each part in turn, and in none, in whole studies."""
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        study = synthetic.make_study(Path(folder))
        for index, (_, truth) in enumerate(synthetic.OF_BLOCKS):
            held = {}
            for number in range(num):
                found = synthetic.of_blocks(study, truth, [seed, index, number])
                for name, is_held in synthetic.held_by_blocks(found, truth):
                    held[name] = held.get(name, 0) + is_held
            shares += [of / num for of in held.values()]
    return Row(
        name=OF_BLOCKS,
        claimed="holds the truth in 95 % or more",
        simulated="12 of 69 ms in one part, or in none; 3 % between runs and 1 %"
        " between processes, 5 runs",
        shares=tuple(shares),
        least=BOUNDS["least"],
        n=num,
    )


def _input_bound(num, seed):
    """Pipelines that take exactly what the verdict is about."""
    shares = []
    for n in NUMBERS_OF_TRIALS:
        generator = np.random.default_rng([seed, n])
        wrong = 0
        for _ in range(num):
            machine = np.exp(generator.normal(0, 0.03, n))
            case, alone, pipelines = (
                seconds * machine * np.exp(generator.normal(0, 0.01, n))
                for seconds in (0.060, 0.050, 0.9 * 0.060)
            )
            found = figures.judge_input_bound(case, alone, pipelines)
            wrong += found.verdict != "inconclusive"
        shares.append(wrong / num)
    return Row(
        name=ALONE,
        claimed="false in at most 5 %",
        simulated="pipelines that take exactly 90 % of a step; 1 % between processes;"
        " 3, 5 and 10 runs",
        shares=tuple(shares),
        most=0.05,
        n=num,
    )


def _trials(num, seed):
    shares = []
    for n in NUMBERS_OF_TRIALS:
        values = np.exp(np.random.default_rng([seed, n]).normal(0, 0.03, (num, n)))
        found = [statistics.geometric_mean(of.tolist(), unit="") for of in values]
        shares.append(float(np.mean([not of.excludes(1.0) for of in found])))
    return Row(
        name=TRIALS,
        claimed="holds the geometric mean of its processes in 95 %",
        simulated="3 % between processes; 3, 5 and 10 of them",
        shares=tuple(shares),
        **BOUNDS,
        n=num,
    )
