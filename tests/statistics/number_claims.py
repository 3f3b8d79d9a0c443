"""What the numbers below the first screen claim, and how often they held the truth."""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "results/statistics"))

import known_parts
import numpy as np
import page_claims
from page_claims import Row

from results.figures import explain, lost_time, table
from results.figures.lost_time import PARTS
from results.statistics import estimates, run_scores

PART = "waiting for collectives: 10 ms [9, 11]: a part of the waterfall"
TRIALS = "512 MiB [500, 524]: peak memory, time to first step, FLOP utilisation"
OF_TURNS = "computing: 4 ms [3, 5]: a part of the waterfall without controls"
ALONE = "pipelines alone take 93 % [91, 95] of a step: input-bound, or not"
PROFILE = "80 % [49, 94] of runs reach 600: the band of a profile"
ROWS = {
    **dict.fromkeys(table.RATIOS, page_claims.INTERVAL),
    "throughput": page_claims.RATE,
    **dict.fromkeys(table.OF_CASES, TRIALS),
    **dict.fromkeys(PARTS, PART),
    **dict.fromkeys(explain.PARTS, OF_TURNS),
    "input_bound": ALONE,
    "profile": PROFILE,
}
"""Row of each number, by its name in the code."""
NUMBERS_OF_TRIALS = (3, 5, 10)
BOUNDS = {"least": 0.93, "most": 0.98}


def rows(num, seed):
    yield _parts(num, seed)
    yield _parts_of_turns(num, seed)
    yield _input_bound(num, seed)
    yield _trials(num, seed)
    yield _profile(num, seed)


def _parts(num, seed):
    """Ten milliseconds in each part in turn, and in none."""
    shares = []
    for index, injected in enumerate(known_parts.AFFECTED):
        generator = np.random.default_rng([seed, index])
        held = {}
        for _ in range(num):
            for name, is_held in known_parts.held_parts(generator, injected):
                held[name] = held.get(name, 0) + is_held
        # An imbalance of nothing cannot be negative, so its mean is not 0.
        names = held.keys() - {"imbalance"} | {injected} - {"none"}
        shares += [held[name] / num for name in sorted(names)]
    return Row(
        name=PART,
        claimed="holds the truth in 95 %; an imbalance, where there is one",
        simulated="10 of 60 ms in one part, or in none; 3 % between generations and 2 %"
        " between processes, 5 generations, all controls",
        shares=tuple(shares),
        **BOUNDS,
        n=num,
    )


def _parts_of_turns(num, seed):
    """Twelve milliseconds in each part in turn, and in none, in whole studies."""
    import test_known_losses as known

    shares = []
    with tempfile.TemporaryDirectory() as folder:
        study = known.make_study(Path(folder))
        for index, (_, truth) in enumerate(known.OF_TURNS):
            held = {}
            for number in range(num):
                found = known.of_turns(study, truth, [seed, index, number])
                for name, is_held in known.held_parts(found, truth):
                    held[name] = held.get(name, 0) + is_held
            shares += [of / num for of in held.values()]
    return Row(
        name=OF_TURNS,
        claimed="holds the truth in 95 % or more",
        simulated="12 of 69 ms in one part, or in none; 3 % between generations and 1 %"
        " between processes, 5 generations",
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
                for seconds in (0.060, 0.050, lost_time.FRACTION * 0.060)
            )
            found = lost_time.judge_input_bound(case, alone, pipelines)
            wrong += found.verdict != "inconclusive"
        shares.append(wrong / num)
    return Row(
        name=ALONE,
        claimed="false in at most 5 %",
        simulated="pipelines that take exactly 90 % of a step; 1 % between processes;"
        " 3, 5 and 10 generations",
        shares=tuple(shares),
        most=0.05,
        n=num,
    )


def _trials(num, seed):
    shares = []
    for n in NUMBERS_OF_TRIALS:
        values = np.exp(np.random.default_rng([seed, n]).normal(0, 0.03, (num, n)))
        found = [estimates.geometric_mean(of.tolist(), unit="") for of in values]
        shares.append(float(np.mean([not of.excludes(1.0) for of in found])))
    return Row(
        name=TRIALS,
        claimed="holds the geometric mean of its processes in 95 %",
        simulated="3 % between processes; 3, 5 and 10 of them",
        shares=tuple(shares),
        **BOUNDS,
        n=num,
    )


def _profile(num, seed):
    covered = 0
    for values in page_claims.returns(np.random.default_rng(seed), num, 10):
        found = run_scores.profile({"": values.tolist()}, [600.0])
        covered += found.lows[0] <= 0.8 <= found.highs[0]
    return Row(
        name=PROFILE,
        claimed="holds the share of all runs in 95 % or more",
        simulated="four runs in five reach it; 10 runs",
        shares=(covered / num,),
        least=0.95,
        n=num,
    )
